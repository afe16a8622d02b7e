package edgespec;

/**
 * Which drafter, and how deep. The plan with the most expected tokens a second:
 *
 * <pre>
 * plain:    1 / cost(1)
 * depth n:  (1 + survival(1) + ... + survival(n)) / (drafting + round trip + cost(n + 1))
 * </pre>
 *
 * Plain tokens come by themselves, so they have no round trip; a draft pays one. A draft has to
 * promise 5% more than plain tokens, for estimates are noisy and plain tokens are not.
 */
final class Policy {
    private static final double MARGIN = 1.05;

    private final Costs costs;

    Policy(Costs costs) {
        this.costs = costs;
    }

    /** A drafter by its index, and a depth; 0 is plain. */
    static final class Plan {
        static final Plan PLAIN = new Plan(0, 0);

        final int index;
        final int depth;

        Plan(int index, int depth) {
            this.index = index;
            this.depth = depth;
        }
    }

    /** @param roundTripS the network's share of a round, in seconds */
    Plan choose(Offer[] offers, double roundTripS) {
        double best = MARGIN / costs.seconds(1);
        Plan plan = Plan.PLAIN;
        for (int index = 0; index < offers.length; index++) {
            Offer offer = offers[index];
            double tokens = 1;
            for (int depth = 1; depth <= offer.survival.length; depth++) {
                tokens += offer.survival[depth - 1];
                double draftingS = offer.eachS * Math.max(0, depth - offer.nKnown);
                double rate = tokens / (draftingS + roundTripS + costs.seconds(depth + 1));
                if (rate > best) {
                    best = rate;
                    plan = new Plan(index, depth);
                }
            }
        }
        return plan;
    }
}
