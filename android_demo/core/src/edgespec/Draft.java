package edgespec;

/** A draft: tokens that are known already, and what is expected of further ones. */
final class Draft {
    static final Draft NONE = new Draft(new int[0], new double[0], 0);

    /** The tokens that are known and cost nothing. */
    final int[] tokens;
    /** For each depth, the probability that all drafted tokens up to there are accepted. */
    final double[] acceptanceProbs;
    /** Seconds to draft each further token. */
    final double tokenS;

    Draft(int[] tokens, double[] acceptanceProbs, double tokenS) {
        this.tokens = tokens;
        this.acceptanceProbs = acceptanceProbs;
        this.tokenS = tokenS;
    }
}
