package edgespec;

import java.io.Closeable;
import java.io.IOException;
import java.util.List;

/**
 * A small model on the device that decodes greedily, with one sequence of tokens in its cache. Only
 * one thread at a time may use it.
 */
public interface Model extends Vocabulary, Closeable {
    /** The vocabulary hash of all entries: 16 bytes, defined in docs/concepts/protocol.md. */
    byte[] vocabularyHash();

    /** Number of tokens that the cache can hold. */
    int contextSize();

    /**
     * Appends tokens to the cache.
     *
     * @param nRows number of predictions, 1 to tokens.length
     * @return the likeliest next id after each of the last nRows tokens, in order
     * @throws IOException if the engine fails; the cache is then as it was before
     */
    int[] decode(int[] tokens, int nRows) throws IOException;

    /** Deletes all but the first nPast tokens from the cache. */
    void truncate(int nPast) throws IOException;

    /** Returns the tokens of a text without special tokens at its beginning. */
    int[] encode(String text) throws IOException;

    /** Returns the tokens of a conversation in the model's chat template, up to where its answer begins. */
    int[] encodeChat(List<Message> messages) throws IOException;
}
