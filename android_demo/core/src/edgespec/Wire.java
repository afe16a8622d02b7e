package edgespec;

/**
 * The frames of docs/concepts/protocol.md, version 2: encodes those of the device and decodes those of
 * the server. This device has no options and drafts no trees, so it sends an empty list of each.
 */
final class Wire {
    static final int VERSION = 2;
    static final String SUBPROTOCOL = "edgespec.verify.v2";
    static final String PATH = "/v1/verify";

    private Wire() {}

    /**
     * Encodes OPEN, which starts or resumes a session; the first frame of a connection.
     *
     * @param token the session to resume, zeros for a new one
     * @param model the name of the model that the server must serve, "" for any
     */
    static byte[] open(byte[] token, int vocabularySize, byte[] vocabularyHash, String model) {
        FrameWriter out = new FrameWriter();
        out.u8(0x01);
        out.u8(VERSION);
        out.raw(token);
        out.varint(vocabularySize);
        out.raw(vocabularyHash);
        out.text(model);
        out.varint(0); // options
        return out.bytes();
    }

    /** Encodes BEGIN, which sets the context: `keep` tokens that the server has, then `ids`. */
    static byte[] begin(long generation, int keep, int checksum, int nPrompt, double temperature, long seed,
            int[] ids) {
        FrameWriter out = new FrameWriter();
        out.u8(0x02);
        out.varint(generation);
        out.varint(keep);
        out.u32(checksum);
        out.varint(nPrompt);
        out.f64(temperature);
        out.f64(1); // top_p
        out.f64(0); // min_p
        out.f64(1); // repetition_penalty
        out.f64(0); // presence_penalty
        out.f64(0); // frequency_penalty
        out.varint(0); // top_k
        out.varint(0); // logprobs
        out.varint(0); // biases
        out.u64(seed);
        out.varint(0); // options
        out.ids(ids);
        return out.bytes();
    }

    /**
     * Encodes VERIFY, which has the draft `ids` checked after the first `length` tokens of the context.
     * Then the server may emit `ahead` more tokens by itself.
     */
    static byte[] verify(long round, int length, int checksum, int ahead, int[] ids) {
        FrameWriter out = new FrameWriter();
        out.u8(0x03);
        out.varint(round);
        out.varint(length);
        out.u32(checksum);
        out.varint(ahead);
        out.varint(0); // parents
        out.ids(ids);
        return out.bytes();
    }

    /** Encodes MORE, which lets the server emit tokens without drafts up to this round. */
    static byte[] more(long round) {
        FrameWriter out = new FrameWriter();
        out.u8(0x04);
        out.varint(round);
        return out.bytes();
    }

    /** Encodes CANCEL, which stops reading the prompt and emitting tokens. */
    static byte[] cancel() { return new byte[] {0x05}; }

    /** Decodes a message of the server. Throws if it is not exactly one frame. */
    static Frame decode(byte[] data) throws ProtocolException {
        if (data.length == 0) {
            throw new ProtocolException("an empty message came; a frame has at least its type");
        }
        FrameReader in = new FrameReader(data);
        Frame frame = read(in.u8(), in);
        if (in.left() > 0) {
            throw new ProtocolException(in.left() + " bytes follow the fields of a frame");
        }
        return frame;
    }

    private static Frame read(int type, FrameReader in) throws ProtocolException {
        switch (type) {
            case 0x81: return new Frame.Opened(in);
            case 0x82: return new Frame.Progress(in);
            case 0x83: return new Frame.Answer(in);
            case 0x84: return new Frame.Need(in);
            case 0x85: return new Frame.Busy(in);
            case 0x86: return new Frame.Error(in);
            default: throw new ProtocolException("a frame of unknown type " + type + " came");
        }
    }
}
