package edgespec;

/**
 * Chooses the drafter and the depth of a draft: the plan with the most expected tokens a second.
 *
 * <pre>
 * plain:    1 / cost(1)
 * depth n:  (1 + prob(1) + ... + prob(n)) / (drafting + round trip + cost(n + 1))
 * </pre>
 *
 * prob(n) is the acceptance probability of depth n. The server emits plain tokens unasked, so they
 * cost no round trip; each draft costs one. A draft must promise 5% more than plain decoding, because
 * its gain is only estimated.
 */
final class Policy {
    private static final double MARGIN = 1.05;

    private final Costs costs;

    Policy(Costs costs) {
        this.costs = costs;
    }

    /** The index of a drafter, and a depth; depth 0 is plain decoding. */
    static final class Plan {
        static final Plan PLAIN = new Plan(0, 0);

        final int source;
        final int depth;

        Plan(int source, int depth) {
            this.source = source;
            this.depth = depth;
        }
    }

    /**
     * Chooses the best plan.
     *
     * @param roundTripS seconds to the server and back, without its work
     */
    Plan choose(Draft[] drafts, double roundTripS) {
        double best = MARGIN / costs.seconds(1);
        Plan plan = Plan.PLAIN;
        for (int source = 0; source < drafts.length; source++) {
            Draft draft = drafts[source];
            double tokens = 1;
            for (int depth = 1; depth <= draft.acceptanceProbs.length; depth++) {
                tokens += draft.acceptanceProbs[depth - 1];
                double draftingS = draft.tokenS * Math.max(0, depth - draft.tokens.length);
                double rate = tokens / (draftingS + roundTripS + costs.seconds(depth + 1));
                if (rate > best) {
                    best = rate;
                    plan = new Plan(source, depth);
                }
            }
        }
        return plan;
    }
}
