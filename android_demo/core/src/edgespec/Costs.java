package edgespec;

/**
 * The seconds that the target takes to evaluate tokens. They are those that the server measured
 * (OPENED), times a correction that follows the times in its answers, one for plain steps and one
 * for steps with a draft.
 */
final class Costs {
    /** Weight of the newest step in a correction. */
    private static final double WEIGHT = 1 / 16.0;
    /** Assumed if a server sends no costs: seconds of a plain step, and the share that each further token
     * adds to it. */
    private static final double PLAIN_S = 0.05;
    private static final double FURTHER = 0.15;

    private long[][] table = {};
    private double plainRatio = 1;
    private double wideRatio = 1;

    /** Takes over a table of (tokens, microseconds) whose tokens ascend. */
    void setMeasured(long[][] costs) {
        for (int i = 0; i < costs.length; i++) {
            if (costs[i][0] <= (i == 0 ? 0 : costs[i - 1][0]) || costs[i][1] <= 0) {
                return; // this is no table of costs: keep the earlier one or the assumption
            }
        }
        table = costs;
    }

    /** Returns the seconds of an evaluation of so many tokens. */
    double seconds(int tokens) {
        double plain = plainRatio * expected(1);
        return tokens == 1 ? plain : Math.max(plain, wideRatio * expected(tokens));
    }

    /** Corrects the costs by the seconds that an evaluation took. */
    void observe(int tokens, double seconds) {
        double ratio = seconds / expected(tokens);
        if (tokens == 1) {
            plainRatio += WEIGHT * (limited(ratio, plainRatio) - plainRatio);
        } else {
            wideRatio += WEIGHT * (limited(ratio, wideRatio) - wideRatio);
        }
    }

    /** Limits an outlier to twice or half of the usual ratio. */
    private static double limited(double ratio, double usual) {
        return Math.min(Math.max(ratio, usual / 2), usual * 2);
    }

    /** Interpolates in the table linearly, and extrapolates from its last two lines. */
    private double expected(int tokens) {
        if (table.length == 0) {
            return PLAIN_S * (1 + FURTHER * (tokens - 1));
        }
        if (table.length == 1 || tokens <= table[0][0]) {
            return 1e-6 * table[0][1] * (table.length == 1 ? 1 + FURTHER * Math.max(0, tokens - 1) : 1);
        }
        int i = 1;
        while (i < table.length - 1 && table[i][0] < tokens) {
            i++;
        }
        double slope = (double) (table[i][1] - table[i - 1][1]) / (table[i][0] - table[i - 1][0]);
        return 1e-6 * Math.max(table[0][1], table[i][1] + slope * (tokens - table[i][0]));
    }
}
