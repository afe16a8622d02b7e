package edgespec;

/** What the target said of a draft: the accepted tokens and one of its own. */
final class Verdict {
    final int[] tokens;
    final int nAccepted;

    Verdict(int[] tokens, int nAccepted) {
        this.tokens = tokens;
        this.nAccepted = nAccepted;
    }
}
