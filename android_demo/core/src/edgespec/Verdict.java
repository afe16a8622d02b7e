package edgespec;

/** The result of a verification: the accepted tokens and one of the target's own. */
final class Verdict {
    final int[] tokens;
    final int nAccepted;

    Verdict(int[] tokens, int nAccepted) {
        this.tokens = tokens;
        this.nAccepted = nAccepted;
    }
}
