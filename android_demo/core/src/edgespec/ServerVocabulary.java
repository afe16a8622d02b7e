package edgespec;

import java.io.ByteArrayOutputStream;
import java.util.Arrays;
import java.util.BitSet;

/** The server's vocabulary, read from the answer of GET /v1/vocabulary (docs/concepts/protocol.md). */
final class ServerVocabulary implements Vocabulary {
    private final byte[] hash;
    private final BitSet ends = new BitSet();
    /** The texts of all tokens, one after another; that of a token begins at offsets[id]. */
    private final byte[] pieces;
    private final int[] offsets;

    ServerVocabulary(byte[] data) throws ProtocolException {
        FrameReader in = new FrameReader(data);
        int version = in.u8();
        if (version != 1) {
            throw new ProtocolException("a vocabulary of version " + version
                    + " came; this app reads version 1: bring app and server to the same release");
        }
        int size = in.number();
        hash = in.raw(16);
        int nEnds = in.number();
        if (size > data.length || nEnds > data.length) {
            throw new ProtocolException("a vocabulary of " + size + " tokens came in "
                    + data.length + " bytes");
        }
        for (int i = 0; i < nEnds; i++) {
            int end = in.number();
            if (end >= size) {
                throw new ProtocolException("a vocabulary of " + size + " tokens ends answers with " + end);
            }
            ends.set(end);
        }
        offsets = new int[size + 1];
        ByteArrayOutputStream all = new ByteArrayOutputStream();
        for (int id = 0; id < size; id++) {
            byte[] piece = in.raw(in.number());
            all.write(piece, 0, piece.length);
            offsets[id + 1] = all.size();
        }
        if (in.left() > 0) {
            throw new ProtocolException(in.left() + " bytes follow the last token of a vocabulary");
        }
        pieces = all.toByteArray();
    }

    int size() { return offsets.length - 1; }

    /** The vocabulary hash of all entries, equal to the one in OPENED. */
    byte[] hash() { return hash; }

    @Override
    public byte[] piece(int id) { return Arrays.copyOfRange(pieces, offsets[id], offsets[id + 1]); }

    @Override
    public boolean isEnd(int id) { return ends.get(id); }
}
