package edgespec;

/** Figures of one answer. */
public final class Stats {
    /** Tokens of the answer so far. */
    public final int tokens;
    /** Tokens that were drafted, and those of them that stayed. */
    public final int drafted;
    public final int accepted;
    /** From the question to now, the prompt's time included; 0 where nothing was said yet. */
    public final double tokensPerSecond;
    /** accepted / drafted; 0 where nothing was drafted. */
    public final double acceptanceRate;
    /** Median of the network's share of the last rounds, in milliseconds; 0 without a server. */
    public final double roundTripMs;
    /** "" while it goes on; "stop", "length", "cancelled" or "error". */
    public final String finishReason;
    /** Who answers: "server", or "device" for the model on the device. */
    public final String source;

    public Stats(int tokens, int drafted, int accepted, double tokensPerSecond, double roundTripMs,
            String finishReason, String source) {
        this.tokens = tokens;
        this.drafted = drafted;
        this.accepted = accepted;
        this.tokensPerSecond = tokensPerSecond;
        this.acceptanceRate = drafted == 0 ? 0 : (double) accepted / drafted;
        this.roundTripMs = roundTripMs;
        this.finishReason = finishReason;
        this.source = source;
    }
}
