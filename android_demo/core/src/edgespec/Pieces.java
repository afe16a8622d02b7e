package edgespec;

import java.util.Arrays;
import java.util.HashMap;

/**
 * Token ids for a text from what each token adds to one, the longest that fits first. Not always the
 * ids that the tokenizer gives, but the same text: enough for a model that goes on where another
 * one stopped.
 */
final class Pieces {
    private final HashMap<String, Integer> ids = new HashMap<String, Integer>();
    private int longest;

    Pieces(Vocabulary vocabulary, int size) {
        for (int id = 0; id < size; id++) {
            byte[] piece = vocabulary.piece(id);
            if (piece.length > 0 && !ids.containsKey(latin(piece))) {
                ids.put(latin(piece), id);
                longest = Math.max(longest, piece.length);
            }
        }
    }

    /** Bytes that no token has are left out. */
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

    /** One letter a byte, so that bytes can be a key. */
    private static String latin(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte one : bytes) {
            text.append((char) (one & 0xFF));
        }
        return text.toString();
    }
}
