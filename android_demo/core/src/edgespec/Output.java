package edgespec;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharsetDecoder;
import java.nio.charset.CodingErrorAction;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * Turns the tokens of one answer into text, as edgespec/decoding/output.py does. Bytes of an
 * incomplete character and text that may be the beginning of a stop string are held back.
 */
final class Output {
    private final int maxTokens;
    private final List<String> stops = new ArrayList<String>();
    private final StringBuilder text = new StringBuilder();
    private final IntList tokens = new IntList();
    private Vocabulary vocabulary;
    private CharsetDecoder decoder;
    private byte[] incomplete;
    private String held = "";
    private String finishReason = "";
    private boolean stopped;

    Output(int maxTokens, List<String> stops) {
        this.maxTokens = maxTokens;
        for (String stop : stops) {
            if (!stop.isEmpty()) {
                this.stops.add(stop);
            }
        }
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
            decoder = FrameWriter.UTF_8.newDecoder().onMalformedInput(CodingErrorAction.REPLACE)
                    .onUnmappableCharacter(CodingErrorAction.REPLACE);
            incomplete = new byte[0];
        }
    }

    /** The text that may be shown. */
    String text() {
        return text.toString();
    }

    /** The text so far, including what is held back. */
    String allText() {
        return text + held;
    }

    /** The tokens so far. */
    int[] tokens() {
        return tokens.toArray();
    }

    int size() {
        return tokens.size();
    }

    /** Number of tokens that may still follow. */
    int left() {
        return maxTokens - tokens.size();
    }

    /** The reason why the answer has ended, such as "stop" or "length"; "" while it has not. */
    String finishReason() {
        return finishReason;
    }

    /** Ends the answer for a reason of the caller's; the first reason stays. */
    void finish(String reason) {
        if (finishReason.isEmpty()) {
            finishReason = reason;
        }
    }

    /** Takes tokens up to the one that ends the answer, and reports their text; returns those taken. */
    int[] cut(int[] verdict, int nAccepted, Listener listener) {
        int n = 0;
        while (n < verdict.length && finishReason.isEmpty()) {
            show(take(verdict[n]), n < nAccepted, listener);
            n++;
        }
        return Arrays.copyOf(verdict, n);
    }

    /** Reports the text that was held back, at the end of the answer. */
    void flush(Listener listener) {
        if (!stopped && vocabulary != null) {
            show(held + decoded(new byte[0], true), false, listener);
        }
        held = "";
        incomplete = new byte[0];
    }

    private void show(String shown, boolean drafted, Listener listener) {
        if (!shown.isEmpty()) {
            text.append(shown);
            listener.onText(shown, drafted);
        }
    }

    private String take(int token) {
        tokens.add(token);
        if (vocabulary.isEnd(token)) {
            finish("stop");
            return "";
        }
        held += decoded(vocabulary.piece(token), false);
        String shown = release();
        if (left() <= 0) {
            finish("length");
        }
        return shown;
    }

    /** Returns the text that cannot belong to a stop string; ends the answer at a stop string. */
    private String release() {
        int at = held.length();
        int first = -1;
        for (String stop : stops) {
            int found = held.indexOf(stop);
            if (found >= 0 && (first < 0 || found < first)) {
                first = found;
            }
            at = Math.min(at, held.length() - overlap(stop));
        }
        if (first >= 0) {
            at = first;
            stopped = true;
            finish("stop");
        }
        String shown = held.substring(0, at);
        held = held.substring(at);
        return shown;
    }

    /** Returns the length of the longest ending of the held text that begins the stop string. */
    private int overlap(String stop) {
        int n = Math.min(held.length(), stop.length() - 1);
        while (n > 0 && !held.endsWith(stop.substring(0, n))) {
            n--;
        }
        return n;
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
