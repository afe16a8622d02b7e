package edgespec;

/** Token ids, with the checksum of the first n of them for every n. */
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

    /** Keeps the first `length` tokens. */
    void truncate(int length) {
        tokens.truncate(length);
        checksums.truncate(length + 1);
    }

    /** Returns the checksum of the first `length` tokens. */
    int checksum(int length) {
        return checksums.get(length);
    }

    /** Returns true if there are `length` tokens or more, and the first ones have this checksum. */
    boolean has(long length, int checksum) {
        return length >= 0 && length <= size() && checksum((int) length) == checksum;
    }

    IntList tokens() {
        return tokens;
    }

    /**
     * Continues a CRC-32 with the four bytes of a token. java.util.zip.CRC32 cannot continue from a
     * given value.
     */
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
