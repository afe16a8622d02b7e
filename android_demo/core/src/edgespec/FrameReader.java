package edgespec;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** Reads the fields of a frame one by one. Every method throws if its field is missing. */
final class FrameReader {
    private final byte[] data;
    private int at;

    FrameReader(byte[] data) {
        this.data = data;
    }

    /** Number of bytes that are not read yet. */
    int left() { return data.length - at; }

    byte[] raw(int n) throws ProtocolException {
        if (n > left()) {
            throw new ProtocolException("a frame ends " + (n - left()) + " bytes before its fields do");
        }
        at += n;
        return Arrays.copyOfRange(data, at - n, at);
    }

    int u8() throws ProtocolException { return raw(1)[0] & 0xFF; }

    int u32() throws ProtocolException {
        return ByteBuffer.wrap(raw(4)).order(ByteOrder.LITTLE_ENDIAN).getInt();
    }

    /** Reads an unsigned LEB128 number below 2^64, as the bits of a long. */
    long varint() throws ProtocolException {
        long value = 0;
        int part = 0x80;
        for (int shift = 0; part >= 0x80; shift += 7) {
            part = u8();
            if (shift == 63 && part > 1) {
                throw new ProtocolException("a number in a frame is too large or has more than ten bytes");
            }
            if (shift > 0 && part == 0) {
                throw new ProtocolException("a number in a frame is written too long");
            }
            value |= (long) (part & 0x7F) << shift;
        }
        return value;
    }

    /** Reads a number below 2^31: a token id, a size or a count. */
    int number() throws ProtocolException { return number(1L << 31); }

    private int number(long limit) throws ProtocolException {
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
        if (n * bytesEach > left()) {
            throw new ProtocolException("a frame is too short for the " + n + " fields that it announces");
        }
        return n;
    }

    String text() throws ProtocolException {
        byte[] bytes = raw(number(1 << 16));
        try {
            return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)).toString();
        } catch (CharacterCodingException error) {
            throw new ProtocolException("a text in a frame is not UTF-8");
        }
    }
}
