package edgespec;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.util.Arrays;

/** Reads the fields of a frame one by one. Every method throws if its field is missing. */
final class FrameReader {
    private static final int MAX_IDS = 1 << 20;
    private static final long BELOW_INT = 1L << 31;

    private final byte[] data;
    private int at;

    FrameReader(byte[] data, int at) {
        this.data = data;
        this.at = at;
    }

    /** Number of bytes that are not read yet. */
    int left() {
        return data.length - at;
    }

    byte[] raw(int n) throws ProtocolException {
        if (n > left()) {
            throw new ProtocolException("a frame ends " + (n - left()) + " bytes before its fields do");
        }
        at += n;
        return Arrays.copyOfRange(data, at - n, at);
    }

    int u8() throws ProtocolException {
        return raw(1)[0] & 0xFF;
    }

    int u32() throws ProtocolException {
        return (int) little(4);
    }

    long u64() throws ProtocolException {
        return little(8);
    }

    float f32() throws ProtocolException {
        return Float.intBitsToFloat(u32());
    }

    double f64() throws ProtocolException {
        return Double.longBitsToDouble(u64());
    }

    /** Reads an unsigned LEB128 number below 2^64, as the bits of a long. */
    long varint() throws ProtocolException {
        long value = 0;
        for (int shift = 0; shift < 70; shift += 7) {
            int part = u8();
            if (shift == 63 && part > 1) {
                throw new ProtocolException("a number in a frame is too large or has more than ten bytes");
            }
            value |= (long) (part & 0x7F) << shift;
            if (part < 0x80) {
                if (part == 0 && shift > 0) {
                    throw new ProtocolException("a number in a frame is written too long");
                }
                return value;
            }
        }
        throw new AssertionError("the tenth byte returns or throws");
    }

    /** Reads a number below 2^31: a token id, a size or a count. */
    int number() throws ProtocolException {
        return number(BELOW_INT);
    }

    /** Reads a number below the limit. */
    int number(long limit) throws ProtocolException {
        long value = varint();
        if (value < 0 || value >= limit) {
            throw new ProtocolException("a number in a frame is too large: less than " + limit + " is allowed");
        }
        return (int) value;
    }

    /**
     * Reads the count of fields that take at least bytesEach bytes each. Throws if the frame is too
     * short for them, so that no memory is allocated for fields that cannot follow.
     */
    int count(int bytesEach) throws ProtocolException {
        int n = number(1 << 16);
        if ((long) n * bytesEach > left()) {
            throw new ProtocolException("a frame is too short for the " + n + " things that it says follow");
        }
        return n;
    }

    String text() throws ProtocolException {
        byte[] bytes = raw(number(FrameWriter.LONGEST_TEXT + 1));
        try {
            return FrameWriter.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)).toString();
        } catch (CharacterCodingException error) {
            throw new ProtocolException("a text in a frame is not UTF-8");
        }
    }

    /** Reads token ids up to the end of the frame. */
    int[] ids() throws ProtocolException {
        int[] ids = new int[Math.min(left(), MAX_IDS)];
        int n = 0;
        while (left() > 0) {
            if (n == MAX_IDS) {
                throw new ProtocolException("a frame has more than " + MAX_IDS + " token ids");
            }
            ids[n++] = number();
        }
        return Arrays.copyOf(ids, n);
    }

    private long little(int bytes) throws ProtocolException {
        byte[] found = raw(bytes);
        long value = 0;
        for (int i = 0; i < bytes; i++) {
            value |= (found[i] & 0xFFL) << 8 * i;
        }
        return value;
    }
}
