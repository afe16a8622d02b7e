package edgespec;

/** The expectation of a draft before it is drafted: its acceptance probabilities and its costs. */
final class DraftEstimate {
    static final DraftEstimate NOTHING = new DraftEstimate(new double[0], 0, 0);

    /** For each depth, the probability that all drafted tokens up to there are accepted. */
    final double[] acceptanceProbs;
    /** The first nKnown tokens are drafted already and cost nothing. */
    final int nKnown;
    /** Seconds to draft each further token. */
    final double tokenS;

    DraftEstimate(double[] acceptanceProbs, int nKnown, double tokenS) {
        this.acceptanceProbs = acceptanceProbs;
        this.nKnown = nKnown;
        this.tokenS = tokenS;
    }
}
