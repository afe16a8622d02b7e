package edgespec;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharsetDecoder;
import java.nio.charset.CodingErrorAction;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * Turns the tokens of one answer into text, as edgespec/decoding/output.py does. The bytes of an
 * incomplete character are held back.
 */
final class Output {
    private final int maxTokens;
    private final StringBuilder text = new StringBuilder();
    private final IntList tokens = new IntList();
    private Vocabulary vocabulary;
    private CharsetDecoder decoder;
    private byte[] incomplete;
    private String finishReason = "";

    Output(int maxTokens) {
        this.maxTokens = maxTokens;
    }

    /**
     * Sets the vocabulary of the tokens that follow.
     *
     * @param same whether it is the vocabulary of the tokens before: then an incomplete character is
     *     completed, else its bytes are dropped
     */
    void useVocabulary(Vocabulary vocabulary, boolean same) {
        this.vocabulary = vocabulary;
        if (!same || decoder == null) {
            decoder = StandardCharsets.UTF_8.newDecoder().onMalformedInput(CodingErrorAction.REPLACE)
                    .onUnmappableCharacter(CodingErrorAction.REPLACE);
            incomplete = new byte[0];
        }
    }

    /** The text so far. */
    String text() { return text.toString(); }

    /** The tokens so far. */
    int[] tokens() { return tokens.toArray(); }

    int size() { return tokens.size(); }

    /** Number of tokens that may still follow. */
    int left() { return maxTokens - tokens.size(); }

    /** The reason why the answer has ended, such as "stop" or "length"; "" while it has not. */
    String finishReason() { return finishReason; }

    /** Ends the answer for a reason of the caller's; the first reason stays. */
    void finish(String reason) {
        if (finishReason.isEmpty()) {
            finishReason = reason;
        }
    }

    /** Takes tokens up to the end of the answer, and reports their text; returns those taken. */
    int[] cut(int[] verdict, Listener listener) {
        int n = 0;
        while (n < verdict.length && finishReason.isEmpty()) {
            int token = verdict[n];
            tokens.add(token);
            if (vocabulary.isEnd(token)) {
                finish("stop");
            } else {
                show(decoded(vocabulary.piece(token), false), n < verdict.length - 1, listener);
                if (left() <= 0) {
                    finish("length");
                }
            }
            n++;
        }
        return Arrays.copyOf(verdict, n);
    }

    /** Reports the bytes that were held back, at the end of the answer. */
    void flush(Listener listener) {
        if (vocabulary != null) {
            show(decoded(new byte[0], true), false, listener);
        }
    }

    private void show(String shown, boolean drafted, Listener listener) {
        if (!shown.isEmpty()) {
            text.append(shown);
            listener.onText(shown, drafted);
        }
    }

    /** Returns the whole characters of the bytes; incomplete ones wait for more bytes. */
    private String decoded(byte[] bytes, boolean end) {
        ByteBuffer in = ByteBuffer.allocate(incomplete.length + bytes.length);
        in.put(incomplete).put(bytes).flip();
        CharBuffer out = CharBuffer.allocate(in.remaining() + 4);
        decoder.decode(in, out, end);
        incomplete = new byte[in.remaining()];
        in.get(incomplete);
        out.flip();
        return out.toString();
    }
}
