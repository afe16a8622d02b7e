package edgespec;

/** The figures of an answer while it is made. */
final class Figures {
    private final long began = System.nanoTime();
    private long told = began;
    int drafted;
    int accepted;
    double roundTripS;
    String source = "server";

    /** Whether it is long enough since figures were told last. */
    boolean due() {
        long now = System.nanoTime();
        if (now - told < 200000000L) {
            return false;
        }
        told = now;
        return true;
    }

    Stats stats(int tokens, String finishReason) {
        double seconds = 1e-9 * (System.nanoTime() - began);
        return new Stats(tokens, drafted, accepted, tokens / Math.max(seconds, 1e-9),
                1000 * roundTripS, finishReason, source);
    }
}
