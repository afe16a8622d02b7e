package edgespec;

/** Counts the statistics of an answer while it is generated. */
final class RunningStats {
    private final long began = System.nanoTime();
    private long reportedAt = began;
    int drafted;
    int accepted;
    double roundTripS;
    String source = "server";

    /** Returns true if the last report was 0.2 s ago or more; then the next 0.2 s begin. */
    boolean reportIsDue() {
        long now = System.nanoTime();
        if (now - reportedAt < 200000000L) {
            return false;
        }
        reportedAt = now;
        return true;
    }

    /** Returns the statistics of an answer that has so many tokens now. */
    Stats snapshot(int tokens, String finishReason) {
        double seconds = 1e-9 * (System.nanoTime() - began);
        return new Stats(tokens, drafted, accepted, tokens / Math.max(seconds, 1e-9),
                1000 * roundTripS, finishReason, source);
    }
}
