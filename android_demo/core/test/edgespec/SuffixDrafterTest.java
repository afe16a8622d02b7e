package edgespec;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.util.List;
import java.util.Map;
import org.junit.Test;

/** Tests that prompt lookup drafts what Python's does (tests/data/drafter_vectors.json). */
public class SuffixDrafterTest {
    private int proposed;

    @Test
    public void tokensAndAcceptanceProbabilitiesOfPython() throws IOException {
        List<?> cases = Vectors.list(Vectors.read("drafter_vectors.json"), "cases");
        for (Object one : cases) {
            play((Map<?, ?>) one);
        }
        assertTrue("so many tokens were proposed: " + proposed, proposed > 1000);
    }

    private void play(Map<?, ?> vector) {
        SuffixDrafter drafter = new SuffixDrafter((int) Vectors.number(vector, "min_match"),
                Vectors.real(vector.get("p_min")));
        int n = 0;
        for (Object one : Vectors.list(vector, "steps")) {
            String where = vector.get("name") + ", step " + n++;
            Map<?, ?> step = (Map<?, ?>) one;
            if (step.containsKey("begin")) {
                drafter.begin(Vectors.ints(Vectors.list(step, "begin")),
                        Vectors.ints(Vectors.list(step, "earlier")));
            } else if (step.containsKey("accept")) {
                drafter.accept(Vectors.ints(Vectors.list(step, "accept")));
            } else {
                compare(where, step, drafter.propose((int) Vectors.number(step, "propose")));
            }
        }
    }

    /** Compares probabilities as far as the power functions of two languages agree. */
    private void compare(String where, Map<?, ?> step, Draft draft) {
        assertArrayEquals(where, Vectors.ints(Vectors.list(step, "tokens")), draft.tokens);
        List<?> expected = Vectors.list(step, "acceptance_probs");
        assertEquals(where, expected.size(), draft.acceptanceProbs.length);
        for (int i = 0; i < draft.acceptanceProbs.length; i++) {
            assertEquals(where, Vectors.real(expected.get(i)), draft.acceptanceProbs[i], 1e-11);
        }
        proposed += draft.tokens.length;
    }

    @Test
    public void periodicTextStaysCheapAndSure() {
        SuffixDrafter drafter = new SuffixDrafter(2, 0);
        int[] same = new int[20000];
        java.util.Arrays.fill(same, 7);
        drafter.begin(same, new int[0]);
        Draft draft = drafter.propose(31);
        assertEquals(31, draft.tokens.length);
        assertTrue(draft.acceptanceProbs[0] > 0.9);
    }
}
