package edgespec;

/**
 * Seconds that the target takes to evaluate tokens, as the server measured them (OPENED), corrected
 * by what its answers say that they took: plain steps and wider ones apart.
 */
final class Costs {
    private static final double MEMORY = 1 / 16.0;
    /** Assumed where a server does not say: a plain step, and what each further token adds to it. */
    private static final double PLAIN_S = 0.05;
    private static final double EACH = 0.15;

    private long[][] table = {};
    private double plainRatio = 1;
    private double wideRatio = 1;

    /** A table of (tokens, microseconds), by rising tokens. */
    void measured(long[][] costs) {
        for (int i = 0; i < costs.length; i++) {
            if (costs[i][0] <= (i == 0 ? 0 : costs[i - 1][0]) || costs[i][1] <= 0) {
                return; // no table of costs: what was known or assumed is better
            }
        }
        table = costs;
    }

    /** Of an evaluation of so many tokens. */
    double seconds(int tokens) {
        double plain = plainRatio * expected(1);
        return tokens == 1 ? plain : Math.max(plain, wideRatio * expected(tokens));
    }

    /** What one took. */
    void observe(int tokens, double seconds) {
        double ratio = seconds / expected(tokens);
        if (tokens == 1) {
            plainRatio += MEMORY * (within(ratio, plainRatio) - plainRatio);
        } else {
            wideRatio += MEMORY * (within(ratio, wideRatio) - wideRatio);
        }
    }

    /** One odd moment counts as twice or half of what is usual. */
    private static double within(double ratio, double usual) {
        return Math.min(Math.max(ratio, usual / 2), usual * 2);
    }

    /** By the table: between two of its lines, or on from the last two, in a straight line. */
    private double expected(int tokens) {
        if (table.length == 0) {
            return PLAIN_S * (1 + EACH * (tokens - 1));
        }
        if (table.length == 1 || tokens <= table[0][0]) {
            return 1e-6 * table[0][1] * (table.length == 1 ? 1 + EACH * Math.max(0, tokens - 1) : 1);
        }
        int i = 1;
        while (i < table.length - 1 && table[i][0] < tokens) {
            i++;
        }
        double slope = (double) (table[i][1] - table[i - 1][1]) / (table[i][0] - table[i - 1][0]);
        return 1e-6 * Math.max(table[0][1], table[i][1] + slope * (tokens - table[i][0]));
    }
}
