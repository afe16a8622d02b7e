package edgespec;

import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;

/** Writes the fields of a frame one after another, in the encoding of docs/concepts/protocol.md. */
final class FrameWriter {
    private final ByteArrayOutputStream out = new ByteArrayOutputStream();

    void u8(int value) {
        out.write(value);
    }

    void u32(int value) {
        little(value, 4);
    }

    void u64(long value) {
        little(value, 8);
    }

    void f64(double value) {
        u64(Double.doubleToRawLongBits(value));
    }

    /** Writes all 64 bits as an unsigned LEB128 number. */
    void varint(long value) {
        while ((value & ~0x7FL) != 0) {
            out.write((int) (value & 0x7F) | 0x80);
            value >>>= 7;
        }
        out.write((int) value);
    }

    void text(String text) {
        byte[] data = text.getBytes(StandardCharsets.UTF_8);
        varint(data.length);
        raw(data);
    }

    void raw(byte[] bytes) {
        out.write(bytes, 0, bytes.length);
    }

    void ids(int[] ids) {
        for (int id : ids) {
            varint(id);
        }
    }

    byte[] bytes() { return out.toByteArray(); }

    private void little(long value, int bytes) {
        for (int i = 0; i < bytes; i++) {
            out.write((int) (value >>> 8 * i) & 0xFF);
        }
    }
}
