package edgespec;

/** Encodes Base64 for the WebSocket handshake. Android has java.util.Base64 only since API 26. */
final class Base64 {
    private static final String DIGITS =
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    private Base64() {}

    static String encode(byte[] data) {
        StringBuilder out = new StringBuilder();
        for (int i = 0; i < data.length; i += 3) {
            int left = Math.min(3, data.length - i);
            int bits = 0;
            for (int j = 0; j < 3; j++) {
                bits = bits << 8 | (j < left ? data[i + j] & 0xFF : 0);
            }
            for (int j = 0; j < 4; j++) {
                out.append(j <= left ? DIGITS.charAt(bits >>> 18 - 6 * j & 63) : '=');
            }
        }
        return out.toString();
    }
}
