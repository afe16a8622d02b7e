package edgespec;

/** Statistics of one answer. */
public final class Stats {
    /** Number of tokens of the answer so far. */
    public final int tokens;
    /** Number of drafted tokens, and of those that the target accepted. */
    public final int drafted;
    public final int accepted;
    /** Tokens a second since the question was sent, the time of the prompt included. */
    public final double tokensPerSecond;
    /** accepted / drafted; 0 if nothing was drafted. */
    public final double acceptanceRate;
    /** Median round trip of the last rounds without the server's work, in milliseconds; 0 without a server. */
    public final double roundTripMs;
    /** "stop", "length", "cancelled" or "error"; "" while the answer goes on. */
    public final String finishReason;
    /** "server", or "device" if the model on the device answers. */
    public final String source;

    Stats(RunningStats running, Output output, double seconds) {
        tokens = output.size();
        drafted = running.drafted;
        accepted = running.accepted;
        tokensPerSecond = tokens / Math.max(seconds, 1e-9);
        acceptanceRate = drafted == 0 ? 0 : (double) accepted / drafted;
        roundTripMs = 1000 * running.roundTripS;
        finishReason = output.finishReason();
        source = running.source;
    }
}
