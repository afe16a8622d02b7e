package edgespec;

import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;

/** Encodes and decodes the frames of docs/concepts/protocol.md, and computes vocabulary hashes. */
public final class Wire {
    static final int VERSION = 1;
    static final String SUBPROTOCOL = "edgespec.verify.v1";
    static final String PATH = "/v1/verify";

    private Wire() {
    }

    /** Encodes a frame as a message. */
    static byte[] encode(Frame frame) {
        FrameWriter out = new FrameWriter();
        out.u8(frame.type());
        frame.write(out);
        return out.bytes();
    }

    /** Decodes a message. Throws if it is no frame, or has bytes after the last field. */
    static Frame decode(byte[] data) throws ProtocolException {
        if (data.length == 0) {
            throw new ProtocolException("an empty message came; a frame has at least its type");
        }
        int type = data[0] & 0xFF;
        boolean saysVersion = type == 0x01 || type == 0x81;
        if (saysVersion && data.length > 1 && data[1] != VERSION) {
            throw new ProtocolException("a frame of version " + (data[1] & 0xFF)
                    + " of the protocol came; this program speaks version " + VERSION + ": update it");
        }
        FrameReader in = new FrameReader(data, 1);
        Frame frame = read(type, in);
        if (in.left() > 0) {
            throw new ProtocolException(in.left() + " bytes stand behind the fields of a frame");
        }
        return frame;
    }

    private static Frame read(int type, FrameReader in) throws ProtocolException {
        switch (type) {
            case 0x01: return new Frame.Open(in);
            case 0x02: return new Frame.Begin(in);
            case 0x03: return new Frame.Verify(in);
            case 0x04: return new Frame.More(in);
            case 0x05: return new Frame.Cancel();
            case 0x81: return new Frame.Opened(in);
            case 0x82: return new Frame.Progress(in);
            case 0x83: return new Frame.Answer(in);
            case 0x84: return new Frame.Need(in);
            case 0x85: return new Frame.Busy(in);
            case 0x86: return new Frame.Error(in);
            default: throw new ProtocolException("a frame of unknown type " + type + " came");
        }
    }

    /**
     * Computes the vocabulary hash of docs/concepts/protocol.md, 16 bytes.
     *
     * @param entries the bytes of each id in the vocabulary itself
     */
    public static byte[] vocabularyHash(byte[][] entries) {
        MessageDigest digest = sha256();
        for (byte[] entry : entries) {
            FrameWriter length = new FrameWriter();
            length.u32(entry.length);
            digest.update(length.bytes());
            digest.update(entry);
        }
        return Arrays.copyOf(digest.digest(), 16);
    }

    private static MessageDigest sha256() {
        try {
            return MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException error) {
            throw new AssertionError("every Java and every Android has SHA-256: " + error);
        }
    }
}
