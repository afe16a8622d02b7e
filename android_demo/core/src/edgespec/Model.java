package edgespec;

import java.io.Closeable;
import java.io.IOException;
import java.util.List;

/**
 * A small model on the device, greedy, with one sequence of tokens in its cache. Not thread-safe:
 * one thread at a time.
 */
public interface Model extends Vocabulary, Closeable {
    /** What to call it before a person. */
    String name();

    int vocabularySize();

    /** The 16 bytes that docs/concepts/protocol.md calls the vocabulary hash, of all entries. */
    byte[] vocabularyHash();

    /** Most tokens that the cache holds. */
    int contextSize();

    /** Tokens that the cache holds now. */
    int nPast();

    /**
     * Appends tokens to the cache.
     *
     * @param nRows how many of the last tokens to answer for, 1 to tokens.length
     * @return the likeliest next id behind each of the last nRows tokens, in order
     * @throws IOException if the engine cannot; the cache is as it was then
     */
    int[] decode(int[] tokens, int nRows) throws IOException;

    /** Forgets all but the first nPast tokens. */
    void truncate(int nPast) throws IOException;

    /** The conversation under the model's chat template, with the opening of the assistant's turn. */
    int[] encodeChat(List<Message> messages) throws IOException;
}
