package edgespec;

import static org.junit.Assert.*;

import org.junit.Test;

/** Tests that the policy chooses the plan with the most expected tokens a second. */
public class PolicyTest {
    private static final DraftEstimate NOTHING = DraftEstimate.NOTHING;

    private static Costs costs(long... pairs) {
        long[][] table = new long[pairs.length / 2][];
        for (int i = 0; i < table.length; i++) {
            table[i] = new long[] {pairs[2 * i], pairs[2 * i + 1]};
        }
        Costs costs = new Costs();
        costs.setMeasured(table);
        return costs;
    }

    private static DraftEstimate estimate(double rate, int depth, int nKnown, double tokenS) {
        double[] probs = new double[depth];
        double prob = 1;
        for (int i = 0; i < depth; i++) {
            prob *= rate;
            probs[i] = prob;
        }
        return new DraftEstimate(probs, nKnown, tokenS);
    }

    private static Policy.Plan choose(Costs costs, double roundTripS, DraftEstimate... estimates) {
        return new Policy(costs).choose(estimates, roundTripS);
    }

    @Test
    public void plainWhereNothingCanBeDrafted() {
        assertEquals(0, choose(costs(1, 30000, 8, 40000), 0, NOTHING).depth);
    }

    @Test
    public void theRoundTripHasToBeEarned() {
        Costs costs = costs(1, 30000, 8, 40000, 32, 70000);
        DraftEstimate copied = estimate(0.95, 8, 8, 0);
        assertEquals(8, choose(costs, 0.02, copied).depth);
        // 9 tokens in 0.3 s are fewer than one in 0.03 s
        assertEquals(0, choose(costs, 0.3, copied).depth);
        assertEquals("a long sure draft earns it", 31, choose(costs, 0.3, estimate(0.999, 31, 31, 0)).depth);
    }

    @Test
    public void widthHasToBeEarned() {
        Costs steep = costs(1, 30000, 2, 60000, 4, 120000);
        assertEquals(0, choose(steep, 0, estimate(0.9, 8, 8, 0)).depth);
        Costs step = costs(1, 30000, 4, 31000, 5, 200000, 8, 210000);
        assertEquals("up to the step in the costs", 3, choose(step, 0, estimate(0.9, 8, 8, 0)).depth);
    }

    @Test
    public void unsureTokensAreLeftOut() {
        Costs costs = costs(1, 30000, 8, 60000);
        assertEquals(1, choose(costs, 0, estimate(0.3, 8, 8, 0)).depth);
        assertEquals(0, choose(costs, 0, estimate(0.1, 8, 8, 0)).depth);
        assertEquals(8, choose(costs, 0, estimate(0.99, 8, 8, 0)).depth);
    }

    @Test
    public void draftingTimeHasToBeEarned() {
        Costs flat = costs(1, 100000, 32, 110000);
        assertEquals(0, choose(flat, 0, estimate(0.7, 8, 0, 0.2)).depth);
        assertTrue(choose(flat, 0, estimate(0.7, 8, 0, 0.01)).depth > 2);
        assertEquals("what is there already costs nothing", 2, choose(flat, 0, estimate(0.7, 8, 2, 0.2)).depth);
    }

    @Test
    public void theBetterOfTwo() {
        Costs flat = costs(1, 100000, 32, 110000);
        Policy.Plan plan = choose(flat, 0.01, estimate(0.3, 4, 4, 0), estimate(0.8, 8, 0, 0.005));
        assertEquals(1, plan.source);
        plan = choose(flat, 0.01, estimate(0.95, 8, 8, 0), estimate(0.8, 8, 0, 0.005));
        assertEquals(0, plan.source);
    }

    @Test
    public void costsAreInterpolatedAndExtrapolated() {
        Costs costs = costs(1, 30000, 8, 44000, 16, 100000);
        assertEquals(0.030, costs.seconds(1), 1e-9);
        assertEquals(0.038, costs.seconds(5), 1e-9);
        assertEquals(0.044, costs.seconds(8), 1e-9);
        assertEquals(0.072, costs.seconds(12), 1e-9);
        assertEquals(0.128, costs.seconds(20), 1e-9);
    }

    @Test
    public void invalidTablesAreIgnored() {
        double assumed = new Costs().seconds(1);
        assertTrue(assumed > 0);
        for (Costs wrong : new Costs[] {costs(), costs(0, 5), costs(1, 0), costs(8, 5, 1, 5), costs(1, -5)}) {
            assertEquals(assumed, wrong.seconds(1), 0);
            assertTrue(wrong.seconds(9) > assumed);
        }
        assertEquals(0.02, costs(1, 20000).seconds(1), 1e-9);
        assertTrue(costs(1, 20000).seconds(2) > 0.02);
    }

    @Test
    public void answersCorrectTheTable() {
        Costs costs = costs(1, 30000, 8, 40000);
        for (int i = 0; i < 200; i++) {
            costs.observe(1, 0.06);
            costs.observe(8, 0.2);
        }
        assertEquals(0.06, costs.seconds(1), 1e-3);
        assertEquals(0.2, costs.seconds(8), 1e-2);
        costs.observe(1, 1000);
        Costs slow = costs(1, 30000, 8, 31000);
        for (int i = 0; i < 200; i++) {
            slow.observe(1, 0.06);
        }
        assertTrue("wide is never less than narrow", slow.seconds(8) >= slow.seconds(1));
        assertTrue("one odd moment changes little", costs.seconds(1) < 0.07);
    }
}
