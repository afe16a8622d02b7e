package edgespec;

/** Counts the statistics of an answer while it is generated. */
final class RunningStats {
    private final long began = System.nanoTime();
    private long reportedAt = began;
    int drafted;
    int accepted;
    double roundTripS;
    String source = "server";

    /** Reports if the answer goes on and the last report was 0.2 s ago or more. */
    void reportNowAndThen(Output output, Listener listener) {
        long now = System.nanoTime();
        if (output.finishReason().isEmpty() && now - reportedAt >= 200000000L) {
            reportedAt = now;
            listener.onStats(snapshot(output));
        }
    }

    Stats snapshot(Output output) {
        return new Stats(this, output, 1e-9 * (System.nanoTime() - began));
    }
}
