package edgespec;

/** Tokens proposed to the target, and for each the probability that all up to it are accepted. */
final class Draft {
    static final Draft NONE = new Draft(new int[0], new double[0]);

    final int[] tokens;
    final double[] acceptanceProbs;

    Draft(int[] tokens, double[] acceptanceProbs) {
        this.tokens = tokens;
        this.acceptanceProbs = acceptanceProbs;
    }
}
