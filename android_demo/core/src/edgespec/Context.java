package edgespec;

/** Token ids, and for every length the checksum of the ids before it. */
final class Context {
    private final IntList tokens = new IntList();
    private final IntList checksums = new IntList(new int[] {0});

    int size() {
        return tokens.size();
    }

    void extend(int[] more) {
        for (int token : more) {
            tokens.add(token);
            checksums.add(next(checksums.get(tokens.size() - 1), token));
        }
    }

    /** Keeps the first tokens. */
    void truncate(int length) {
        tokens.truncate(length);
        checksums.truncate(length + 1);
    }

    /** Of the first tokens. */
    int checksum(int length) {
        return checksums.get(length);
    }

    /** Whether the first tokens are those of this checksum. */
    boolean has(long length, int checksum) {
        return length >= 0 && length <= size() && checksum((int) length) == checksum;
    }

    IntList tokens() {
        return tokens;
    }

    /** CRC-32 of what had this one and four bytes more; java.util.zip's cannot go on from a value. */
    private static int next(int checksum, int token) {
        int crc = ~checksum;
        for (int shift = 0; shift < 32; shift += 8) {
            crc = TABLE[(crc ^ token >>> shift) & 0xFF] ^ crc >>> 8;
        }
        return ~crc;
    }

    private static final int[] TABLE = table();

    private static int[] table() {
        int[] table = new int[256];
        for (int i = 0; i < 256; i++) {
            int crc = i;
            for (int bit = 0; bit < 8; bit++) {
                crc = (crc & 1) == 0 ? crc >>> 1 : crc >>> 1 ^ 0xEDB88320;
            }
            table[i] = crc;
        }
        return table;
    }
}
