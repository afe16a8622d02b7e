package edgespec;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.zip.CRC32;

/** A growing list of ints, stored without boxing. */
final class IntList {
    private int[] values = new int[16];
    private int size;

    IntList() {}

    IntList(int[] values) {
        addAll(values);
    }

    int size() { return size; }

    int get(int index) {
        if (index >= size) {
            throw new IndexOutOfBoundsException(index + " of " + size);
        }
        return values[index];
    }

    void set(int index, int value) {
        values[index] = value;
    }

    void add(int value) {
        if (size == values.length) {
            values = Arrays.copyOf(values, 2 * size);
        }
        values[size++] = value;
    }

    void addAll(int[] added) {
        for (int value : added) {
            add(value);
        }
    }

    /** Keeps the first `length` numbers. */
    void truncate(int length) {
        size = Math.min(size, length);
    }

    /** Returns a copy of the numbers from start (inclusive) to end (exclusive). */
    int[] copy(int start, int end) { return Arrays.copyOfRange(values, start, end); }

    int[] toArray() { return copy(0, size); }

    /** Returns the CRC-32 of the first `length` numbers, each as a little-endian u32. */
    int checksum(int length) {
        ByteBuffer bytes = ByteBuffer.allocate(4 * length).order(ByteOrder.LITTLE_ENDIAN);
        bytes.asIntBuffer().put(values, 0, length);
        CRC32 crc = new CRC32();
        crc.update(bytes.array(), 0, bytes.capacity());
        return (int) crc.getValue();
    }

    /** Returns how many numbers at the beginning are equal to those of the other list. */
    int commonPrefix(int[] other) {
        int n = 0;
        while (n < size && n < other.length && values[n] == other[n]) {
            n++;
        }
        return n;
    }
}
