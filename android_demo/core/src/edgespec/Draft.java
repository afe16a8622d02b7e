package edgespec;

/** Tokens to be judged, and the chance that each of them stays, those before it included. */
final class Draft {
    static final Draft NONE = new Draft(new int[0], new double[0]);

    final int[] tokens;
    final double[] survival;

    Draft(int[] tokens, double[] survival) {
        this.tokens = tokens;
        this.survival = survival;
    }
}
