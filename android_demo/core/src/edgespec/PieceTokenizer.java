package edgespec;

import java.util.Arrays;
import java.util.HashMap;

/**
 * Tokenizes a text by always taking the longest token that fits. The ids may differ from those of the
 * model's own tokenizer, but they say the same text, which is enough for a model that continues the
 * answer of another one.
 */
final class PieceTokenizer {
    private final HashMap<String, Integer> ids = new HashMap<String, Integer>();
    private int longest;

    PieceTokenizer(Vocabulary vocabulary, int size) {
        for (int id = 0; id < size; id++) {
            byte[] piece = vocabulary.piece(id);
            if (piece.length > 0 && !ids.containsKey(latin(piece))) {
                ids.put(latin(piece), id);
                longest = Math.max(longest, piece.length);
            }
        }
    }

    /** Returns the token ids of a text; bytes that no token has are left out. */
    int[] encode(String text) {
        byte[] bytes = text.getBytes(FrameWriter.UTF_8);
        IntList found = new IntList();
        int at = 0;
        while (at < bytes.length) {
            int end = Math.min(at + longest, bytes.length);
            while (end > at && !ids.containsKey(latin(Arrays.copyOfRange(bytes, at, end)))) {
                end--;
            }
            if (end > at) {
                found.add(ids.get(latin(Arrays.copyOfRange(bytes, at, end))));
            }
            at = Math.max(end, at + 1);
        }
        return found.toArray();
    }

    /** Returns one letter for each byte, so that bytes can be the key of a map. */
    private static String latin(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte one : bytes) {
            text.append((char) (one & 0xFF));
        }
        return text.toString();
    }
}
