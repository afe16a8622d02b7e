package edgespec;

/**
 * The frames of the server, with the fields in the order of docs/concepts/protocol.md. Numbers below
 * 2^64 are the bits of a long, checksums those of an int.
 */
abstract class Frame {
    /** The answer to OPEN. costs: pairs of (number of tokens, microseconds of their evaluation). */
    static final class Opened extends Frame {
        final byte[] token;
        final int contextSize;
        final int maxDraft;
        final int maxAhead;
        final int vocabularySize;
        final byte[] vocabularyHash;
        final String model;
        final long[][] costs;

        Opened(FrameReader in) throws ProtocolException {
            int version = in.u8();
            if (version != Wire.VERSION) {
                throw new ProtocolException("a frame of version " + version + " of the protocol came; this"
                        + " program speaks version " + Wire.VERSION + ": bring app and server to the same release");
            }
            token = in.raw(16);
            contextSize = in.number();
            maxDraft = in.number();
            maxAhead = in.number();
            vocabularySize = in.number();
            vocabularyHash = in.raw(16);
            model = in.text();
            costs = new long[in.count(2)][];
            for (int i = 0; i < costs.length; i++) {
                costs[i] = new long[] {in.varint(), in.varint()};
            }
            in.number(); // most leaves of a tree
        }
    }

    /** Reports that the first nDone tokens of the context are in the target's cache. */
    static final class Progress extends Frame {
        final long generation;
        final long nDone;

        Progress(FrameReader in) throws ProtocolException {
            generation = in.varint();
            nDone = in.varint();
        }
    }

    /** The verdict of a round: nAccepted drafted tokens, then one of the target's own. */
    static final class Answer extends Frame {
        final long round;
        final int nAccepted;
        final int token;
        final long serverUs;

        Answer(FrameReader in) throws ProtocolException {
            round = in.varint();
            nAccepted = in.number();
            token = in.number();
            serverUs = in.varint();
        }
    }

    /** Asks for BEGIN: the server has only `have` tokens of the context, of this checksum. */
    static final class Need extends Frame {
        final long have;
        final int checksum;

        Need(FrameReader in) throws ProtocolException {
            have = in.varint();
            checksum = in.u32();
        }
    }

    /** Reports that the server cannot serve this now; send it again after retryMs milliseconds. */
    static final class Busy extends Frame {
        final long retryMs;
        final String message;

        Busy(FrameReader in) throws ProtocolException {
            retryMs = in.varint();
            message = in.text();
        }
    }

    /** Reports why the server ends this connection. */
    static final class Error extends Frame {
        static final int PROTOCOL = 1;
        static final int CONTEXT_FULL = 6;
        static final int LIMIT = 7;
        static final int INTERNAL = 8;
        static final int CLOSING = 9;

        final int code;
        final String message;

        Error(FrameReader in) throws ProtocolException {
            code = in.u8();
            message = in.text();
        }
    }
}
