package edgespec;

import java.util.HashMap;

/**
 * Learns how often a guess comes true, for each kind of evidence. The prior weighs like 8
 * observations; an observation weighs half after about 105 later ones of its kind. Equals
 * edgespec/drafters/calibration.py.
 */
final class Calibration {
    private static final double STRENGTH = 8;
    private static final double KEEP = 1 - 1 / 150.0;

    /** For each kind, the weighted number of hits and of observations. */
    private final HashMap<Integer, double[]> seen = new HashMap<Integer, double[]>();

    /** Returns the probability of a hit; the prior is used for a kind that was never observed. */
    double estimate(int kind, double prior) {
        double[] found = seen.get(kind);
        return found == null ? prior : (prior * STRENGTH + found[0]) / (STRENGTH + found[1]);
    }

    /** Takes note of one outcome. */
    void observe(int kind, boolean hit) {
        double[] found = seen.get(kind);
        if (found == null) {
            found = new double[2];
            seen.put(kind, found);
        }
        found[0] = KEEP * found[0] + (hit ? 1 : 0);
        found[1] = KEEP * found[1] + 1;
    }
}
