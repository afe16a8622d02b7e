package edgespec;

import static org.junit.Assert.*;

import org.junit.Test;

/** Tests that the policy chooses the plan with the most expected tokens a second. */
public class PolicyTest {
    private static Costs costs(long... pairs) {
        long[][] table = new long[pairs.length / 2][];
        for (int i = 0; i < table.length; i++) {
            table[i] = new long[] {pairs[2 * i], pairs[2 * i + 1]};
        }
        Costs costs = new Costs();
        costs.setMeasured(table);
        return costs;
    }

    private static Draft estimate(double rate, int depth, int nKnown, double tokenS) {
        double[] probs = new double[depth];
        double prob = 1;
        for (int i = 0; i < depth; i++) {
            prob *= rate;
            probs[i] = prob;
        }
        return new Draft(new int[nKnown], probs, tokenS);
    }

    private static Policy.Plan choose(Costs costs, double roundTripS, Draft... estimates) {
        return new Policy(costs).choose(estimates, roundTripS);
    }

    @Test
    public void roundTripsHaveToBeEarned() {
        Costs costs = costs(1, 30000, 8, 40000, 32, 70000);
        assertEquals("nothing can be drafted", 0, choose(costs, 0, Draft.NONE).depth);
        Draft copied = estimate(0.95, 8, 8, 0);
        assertEquals(8, choose(costs, 0.02, copied).depth);
        assertEquals("9 tokens in 0.3 s are fewer than one in 0.03 s", 0, choose(costs, 0.3, copied).depth);
        assertEquals("a long sure draft earns it", 31, choose(costs, 0.3, estimate(0.999, 31, 31, 0)).depth);
    }

    @Test
    public void tokensHaveToBeEarned() {
        Costs costs = costs(1, 30000, 8, 60000);
        assertEquals(1, choose(costs, 0, estimate(0.3, 8, 8, 0)).depth);
        assertEquals(0, choose(costs, 0, estimate(0.1, 8, 8, 0)).depth);
        assertEquals(8, choose(costs, 0, estimate(0.99, 8, 8, 0)).depth);
        Costs step = costs(1, 30000, 4, 31000, 5, 200000, 8, 210000);
        assertEquals("up to the step in the costs", 3, choose(step, 0, estimate(0.9, 8, 8, 0)).depth);
    }

    @Test
    public void draftingTimeHasToBeEarned() {
        Costs flat = costs(1, 100000, 32, 110000);
        assertEquals(0, choose(flat, 0, estimate(0.7, 8, 0, 0.2)).depth);
        assertTrue(choose(flat, 0, estimate(0.7, 8, 0, 0.01)).depth > 2);
        assertEquals("what is known costs nothing", 2, choose(flat, 0, estimate(0.7, 8, 2, 0.2)).depth);
        Draft model = estimate(0.8, 8, 0, 0.005);
        assertEquals("the better of two", 1, choose(flat, 0.01, estimate(0.3, 4, 4, 0), model).source);
        assertEquals(0, choose(flat, 0.01, estimate(0.95, 8, 8, 0), model).source);
    }

    @Test
    public void costsAreInterpolatedAndExtrapolated() {
        Costs costs = costs(1, 30000, 8, 44000, 16, 100000);
        double[][] expected = {{1, 0.030}, {5, 0.038}, {8, 0.044}, {12, 0.072}, {20, 0.128}};
        for (double[] one : expected) {
            assertEquals(one[1], costs.seconds((int) one[0]), 1e-9);
        }
        double assumed = new Costs().seconds(1);
        for (Costs wrong : new Costs[] {costs(), costs(0, 5), costs(1, 0), costs(8, 5, 1, 5), costs(1, -5)}) {
            assertEquals("a wrong table is ignored", assumed, wrong.seconds(1), 0);
            assertTrue(wrong.seconds(9) > assumed);
        }
        assertTrue(costs(1, 20000).seconds(2) > 0.02);
    }

    @Test
    public void answersCorrectTheTable() {
        Costs costs = costs(1, 30000, 8, 31000);
        for (int i = 0; i < 200; i++) {
            costs.observe(1, 0.06);
        }
        assertEquals(0.06, costs.seconds(1), 1e-3);
        assertTrue("wide is never less than narrow", costs.seconds(8) >= costs.seconds(1));
        for (int i = 0; i < 200; i++) {
            costs.observe(8, 0.2);
        }
        assertEquals(0.2, costs.seconds(8), 1e-2);
        costs.observe(1, 1000);
        assertTrue("one odd moment changes little", costs.seconds(1) < 0.07);
    }
}
