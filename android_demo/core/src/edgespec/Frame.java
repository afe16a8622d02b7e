package edgespec;

/**
 * The frames of docs/concepts/protocol.md, with the fields in the order of that page. Python's are in
 * edgespec/protocol/frames.py. Numbers below 2^64 are the bits of a long, checksums those of an int.
 */
abstract class Frame {
    /** The frame's type, its first byte. */
    abstract int type();

    abstract void write(FrameWriter out);

    /** Starts or resumes a session; the first frame of a connection. */
    static final class Open extends Frame {
        final int version;
        final byte[] token;
        final int vocabularySize;
        final byte[] vocabularyHash;
        final String model;

        Open(int version, byte[] token, int vocabularySize, byte[] vocabularyHash, String model) {
            this.version = version;
            this.token = token;
            this.vocabularySize = vocabularySize;
            this.vocabularyHash = vocabularyHash;
            this.model = model;
        }

        Open(FrameReader in) throws ProtocolException {
            this(in.u8(), in.raw(16), in.number(), in.raw(16), in.text());
        }

        @Override
        int type() {
            return 0x01;
        }

        @Override
        void write(FrameWriter out) {
            out.u8(version);
            out.raw(token);
            out.varint(vocabularySize);
            out.raw(vocabularyHash);
            out.text(model);
        }
    }

    /** Sets the context: `keep` tokens that the server has, of this checksum, then `ids`. */
    static final class Begin extends Frame {
        final long generation;
        final int keep;
        final int checksum;
        final int nPrompt;
        final Sampling sampling;
        final long seed;
        final int[] ids;

        Begin(long generation, int keep, int checksum, int nPrompt, Sampling sampling, long seed,
                int[] ids) {
            this.generation = generation;
            this.keep = keep;
            this.checksum = checksum;
            this.nPrompt = nPrompt;
            this.sampling = sampling;
            this.seed = seed;
            this.ids = ids;
        }

        Begin(FrameReader in) throws ProtocolException {
            this(in.varint(), in.number(), in.u32(), in.number(), Sampling.read(in), in.u64(), in.ids());
        }

        @Override
        int type() {
            return 0x02;
        }

        @Override
        void write(FrameWriter out) {
            out.varint(generation);
            out.varint(keep);
            out.u32(checksum);
            out.varint(nPrompt);
            sampling.write(out);
            out.u64(seed);
            out.ids(ids);
        }
    }

    /**
     * Has the draft `ids` checked after the first `length` tokens of the context. Then the server may
     * emit `ahead` more tokens by itself.
     */
    static final class Verify extends Frame {
        final long round;
        final int length;
        final int checksum;
        final int ahead;
        final int[] ids;

        Verify(long round, int length, int checksum, int ahead, int[] ids) {
            this.round = round;
            this.length = length;
            this.checksum = checksum;
            this.ahead = ahead;
            this.ids = ids;
        }

        Verify(FrameReader in) throws ProtocolException {
            this(in.varint(), in.number(), in.u32(), in.number(), in.ids());
        }

        @Override
        int type() {
            return 0x03;
        }

        @Override
        void write(FrameWriter out) {
            out.varint(round);
            out.varint(length);
            out.u32(checksum);
            out.varint(ahead);
            out.ids(ids);
        }
    }

    /** Lets the server go on emitting tokens without drafts, up to this round. */
    static final class More extends Frame {
        final long round;

        More(long round) {
            this.round = round;
        }

        More(FrameReader in) throws ProtocolException {
            this(in.varint());
        }

        @Override
        int type() {
            return 0x04;
        }

        @Override
        void write(FrameWriter out) {
            out.varint(round);
        }
    }

    /** Stops reading the prompt and emitting tokens. */
    static final class Cancel extends Frame {
        @Override
        int type() {
            return 0x05;
        }

        @Override
        void write(FrameWriter out) {
        }
    }

    /** The answer to OPEN. costs: pairs of (number of tokens, microseconds of their evaluation). */
    static final class Opened extends Frame {
        final int version;
        final byte[] token;
        final int contextSize;
        final int maxDraft;
        final int maxAhead;
        final int vocabularySize;
        final byte[] vocabularyHash;
        final String model;
        final long[][] costs;

        Opened(int version, byte[] token, int contextSize, int maxDraft, int maxAhead,
                int vocabularySize, byte[] vocabularyHash, String model, long[][] costs) {
            this.version = version;
            this.token = token;
            this.contextSize = contextSize;
            this.maxDraft = maxDraft;
            this.maxAhead = maxAhead;
            this.vocabularySize = vocabularySize;
            this.vocabularyHash = vocabularyHash;
            this.model = model;
            this.costs = costs;
        }

        Opened(FrameReader in) throws ProtocolException {
            this(in.u8(), in.raw(16), in.number(), in.number(), in.number(), in.number(), in.raw(16),
                    in.text(), readCosts(in));
        }

        private static long[][] readCosts(FrameReader in) throws ProtocolException {
            long[][] costs = new long[in.count(2)][];
            for (int i = 0; i < costs.length; i++) {
                costs[i] = new long[] {in.varint(), in.varint()};
            }
            return costs;
        }

        @Override
        int type() {
            return 0x81;
        }

        @Override
        void write(FrameWriter out) {
            out.u8(version);
            out.raw(token);
            out.varint(contextSize);
            out.varint(maxDraft);
            out.varint(maxAhead);
            out.varint(vocabularySize);
            out.raw(vocabularyHash);
            out.text(model);
            out.varint(costs.length);
            for (long[] pair : costs) {
                out.varint(pair[0]);
                out.varint(pair[1]);
            }
        }
    }

    /** Reports that the first nDone tokens of the context are in the target's cache. */
    static final class Progress extends Frame {
        final long generation;
        final long nDone;

        Progress(long generation, long nDone) {
            this.generation = generation;
            this.nDone = nDone;
        }

        Progress(FrameReader in) throws ProtocolException {
            this(in.varint(), in.varint());
        }

        @Override
        int type() {
            return 0x82;
        }

        @Override
        void write(FrameWriter out) {
            out.varint(generation);
            out.varint(nDone);
        }
    }

    /** The verdict of a round: nAccepted drafted tokens, then one of the target's own. */
    static final class Answer extends Frame {
        private static final Logprob[] NONE = {};

        final long round;
        final int nAccepted;
        final int token;
        final long serverUs;
        final Logprob[] logprobs;

        Answer(long round, int nAccepted, int token, long serverUs, Logprob[] logprobs) {
            this.round = round;
            this.nAccepted = nAccepted;
            this.token = token;
            this.serverUs = serverUs;
            this.logprobs = logprobs;
        }

        Answer(FrameReader in) throws ProtocolException {
            this(in.varint(), in.number(), in.number(), in.varint(),
                    in.left() == 0 ? NONE : readLogprobs(in));
        }

        private static Logprob[] readLogprobs(FrameReader in) throws ProtocolException {
            Logprob[] found = new Logprob[in.count(5)];
            if (found.length == 0) {
                throw new ProtocolException("an ANSWER without log-probabilities ends before them");
            }
            for (int i = 0; i < found.length; i++) {
                found[i] = new Logprob(in);
            }
            return found;
        }

        @Override
        int type() {
            return 0x83;
        }

        @Override
        void write(FrameWriter out) {
            out.varint(round);
            out.varint(nAccepted);
            out.varint(token);
            out.varint(serverUs);
            if (logprobs.length > 0) {
                out.varint(logprobs.length);
                for (Logprob one : logprobs) {
                    one.write(out);
                }
            }
        }
    }

    /** The log-probability of an emitted token, and the likeliest tokens in its place. */
    static final class Logprob {
        final float logprob;
        final int[] topIds;
        final float[] topLogprobs;

        Logprob(float logprob, int[] topIds, float[] topLogprobs) {
            this.logprob = logprob;
            this.topIds = topIds;
            this.topLogprobs = topLogprobs;
        }

        Logprob(FrameReader in) throws ProtocolException {
            logprob = in.f32();
            int n = in.count(5);
            topIds = new int[n];
            topLogprobs = new float[n];
            for (int i = 0; i < n; i++) {
                topIds[i] = in.number();
                topLogprobs[i] = in.f32();
            }
        }

        void write(FrameWriter out) {
            out.f32(logprob);
            out.varint(topIds.length);
            for (int i = 0; i < topIds.length; i++) {
                out.varint(topIds[i]);
                out.f32(topLogprobs[i]);
            }
        }
    }

    /** Asks for BEGIN: the server has only `have` tokens of the context, of this checksum. */
    static final class Need extends Frame {
        final long have;
        final int checksum;

        Need(long have, int checksum) {
            this.have = have;
            this.checksum = checksum;
        }

        Need(FrameReader in) throws ProtocolException {
            this(in.varint(), in.u32());
        }

        @Override
        int type() {
            return 0x84;
        }

        @Override
        void write(FrameWriter out) {
            out.varint(have);
            out.u32(checksum);
        }
    }

    /** Reports that the server cannot serve this now; send it again after retryMs milliseconds. */
    static final class Busy extends Frame {
        final long retryMs;
        final String message;

        Busy(long retryMs, String message) {
            this.retryMs = retryMs;
            this.message = message;
        }

        Busy(FrameReader in) throws ProtocolException {
            this(in.varint(), in.text());
        }

        @Override
        int type() {
            return 0x85;
        }

        @Override
        void write(FrameWriter out) {
            out.varint(retryMs);
            out.text(message);
        }
    }

    /** Reports why the server ends this connection. */
    static final class Error extends Frame {
        static final int PROTOCOL = 1;
        static final int VERSION = 2;
        static final int MODEL = 3;
        static final int VOCABULARY = 4;
        static final int UNSUPPORTED = 5;
        static final int CONTEXT_FULL = 6;
        static final int LIMIT = 7;
        static final int INTERNAL = 8;
        static final int CLOSING = 9;

        final int code;
        final String message;

        Error(int code, String message) {
            this.code = code;
            this.message = message;
        }

        Error(FrameReader in) throws ProtocolException {
            this(in.u8(), in.text());
        }

        @Override
        int type() {
            return 0x86;
        }

        @Override
        void write(FrameWriter out) {
            out.u8(code);
            out.text(message);
        }
    }
}
