package edgespec;

import static org.junit.Assert.*;

import java.util.Arrays;
import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;
import org.junit.Test;

/** Tests that prompt lookup drafts what Python's does (tests/data/drafter_vectors.json). */
public class SuffixDrafterTest {
    private int proposed;

    @Test
    public void tokensAndAcceptanceProbabilitiesOfPython() throws Exception {
        for (JSONObject one : Vectors.objects(Vectors.read("drafter_vectors.json"), "cases")) {
            play(one);
        }
        assertTrue("so many tokens were proposed: " + proposed, proposed > 1000);
    }

    private void play(JSONObject vector) throws JSONException {
        SuffixDrafter drafter = new SuffixDrafter(vector.getInt("min_match"), vector.getDouble("p_min"));
        for (JSONObject step : Vectors.objects(vector, "steps")) {
            if (step.has("begin")) {
                drafter.begin(Vectors.ints(step, "begin"), Vectors.ints(step, "earlier"));
            } else if (step.has("accept")) {
                drafter.accept(Vectors.ints(step, "accept"));
            } else {
                compare(vector.getString("name"), step, drafter.propose(step.getInt("propose")));
            }
        }
    }

    /** Compares probabilities as far as the power functions of two languages agree. */
    private void compare(String where, JSONObject step, Draft draft) throws JSONException {
        assertArrayEquals(where, Vectors.ints(step, "tokens"), draft.tokens);
        JSONArray expected = step.getJSONArray("acceptance_probs");
        assertEquals(where, expected.length(), draft.acceptanceProbs.length);
        for (int i = 0; i < draft.acceptanceProbs.length; i++) {
            assertEquals(where, expected.getDouble(i), draft.acceptanceProbs[i], 1e-11);
        }
        proposed += draft.tokens.length;
    }

    @Test
    public void periodicTextStaysCheapAndSure() {
        SuffixDrafter drafter = new SuffixDrafter(2, 0);
        int[] same = new int[20000];
        Arrays.fill(same, 7);
        drafter.begin(same, new int[0]);
        Draft draft = drafter.propose(31);
        assertEquals(31, draft.tokens.length);
        assertTrue(draft.acceptanceProbs[0] > 0.9);
    }
}
