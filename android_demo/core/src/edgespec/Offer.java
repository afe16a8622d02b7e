package edgespec;

/** What a drafter could draft: how likely each token is to stay, and how long drafting takes. */
final class Offer {
    static final Offer NOTHING = new Offer(new double[0], 0, 0);

    /** Of each depth, the tokens before it included. */
    final double[] survival;
    /** So many of the tokens are there already. */
    final int nKnown;
    /** Seconds for each of the others. */
    final double eachS;

    Offer(double[] survival, int nKnown, double eachS) {
        this.survival = survival;
        this.nKnown = nKnown;
        this.eachS = eachS;
    }
}
