package edgespec;

import static org.junit.Assert.*;

import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import org.junit.Before;
import org.junit.Test;

/** Tests the drafts of the model on the device, and drafting ahead. */
public class ModelDrafterTest {
    private static final String ASKED = "abcdefgh";
    private Toy model;
    private ModelDrafter drafter;
    private int[] context;
    private int asked;

    /** Returns a verdict that arrives after it was asked for so many times. */
    private ModelDrafter.Verdict verdictAfter(int evaluations) {
        asked = 0;
        return () -> asked++ >= evaluations;
    }

    @Before
    public void start() throws IOException {
        model = new Toy(400, 0);
        drafter = new ModelDrafter(new ModelCache(model));
        drafter.begin();
        context = Toy.encode(List.of(new Message("user", ASKED)));
    }

    private static int[] joined(int[] first, int... more) {
        int[] all = Arrays.copyOf(first, first.length + more.length);
        System.arraycopy(more, 0, all, first.length, more.length);
        return all;
    }

    @Test
    public void itCatchesUpDuringVerifications() throws IOException {
        context = Toy.encode(List.of(new Message("user", new String(new char[100]))));
        assertEquals("beyond its context", 0, drafter.estimateIfCaughtUp(new int[398], 4).acceptanceProbs.length);
        assertEquals(0, drafter.estimate(context, 4).acceptanceProbs.length);
        assertEquals("it could if it had caught up", 4, drafter.estimateIfCaughtUp(context, 4).acceptanceProbs.length);
        drafter.catchUp(context, verdictAfter(2));
        assertEquals(2 * ModelCache.CHUNK, model.nPast());
        assertEquals(0, drafter.estimate(context, 4).acceptanceProbs.length);
        drafter.catchUp(context, verdictAfter(1000));
        assertEquals(context.length - 1, model.nPast());
        assertEquals(4, drafter.estimate(context, 4).acceptanceProbs.length);
    }

    @Test
    public void aGuessThatComesTrue() throws IOException {
        drafter.catchUp(context, verdictAfter(9));
        int[] draft = drafter.propose(context, 2);
        drafter.draftAhead(context, draft, 8, verdictAfter(5)); // reads "b", then c, d, e, f and g
        drafter.accept(Toy.bytes("abc"));
        int[] now = joined(context, Toy.bytes("abc"));
        int before = model.decoded;
        Draft estimate = drafter.estimate(now, 8);
        assertTrue("so many are there: " + estimate.tokens.length, estimate.tokens.length >= 3);
        assertArrayEquals(Arrays.copyOf(Toy.bytes("defgh"), estimate.tokens.length), drafter.propose(now, estimate.tokens.length));
        assertEquals("nothing was evaluated for them", before, model.decoded);
        assertArrayEquals("and goes on after them", Toy.bytes("defgh ."), joined(drafter.propose(now, 6), '.'));
    }

    @Test
    public void aGuessThatDoesNot() throws IOException {
        drafter.catchUp(context, verdictAfter(9));
        int[] draft = drafter.propose(context, 2);
        drafter.draftAhead(context, draft, 8, verdictAfter(5));
        drafter.accept(Toy.bytes("x"));
        int[] now = joined(context, 'x');
        assertEquals(0, drafter.estimate(now, 8).tokens.length);
        assertArrayEquals("it goes on from what is", Toy.bytes("bcd"), drafter.propose(now, 3));
        assertEquals(now.length + 2, model.nPast());
    }

    @Test
    public void learnsFromItsOwnDraftsOnly() throws IOException {
        drafter.catchUp(context, verdictAfter(9));
        double before = drafter.estimateIfCaughtUp(context, 2).acceptanceProbs[0];
        drafter.accept(Toy.bytes("q")); // it had not drafted
        assertEquals(before, drafter.estimateIfCaughtUp(context, 2).acceptanceProbs[0], 0);
        drafter.propose(context, 2);
        drafter.accept(Toy.bytes("q"));
        assertTrue(drafter.estimateIfCaughtUp(context, 2).acceptanceProbs[0] < before);
        drafter.begin();
        assertEquals("the next answer is another matter", before, drafter.estimateIfCaughtUp(context, 2).acceptanceProbs[0], 0);
        drafter.propose(context, 2);
        drafter.accept(Toy.bytes("abc"));
        Draft after = drafter.estimateIfCaughtUp(context, 2);
        assertTrue(after.acceptanceProbs[0] > before);
        assertTrue(after.acceptanceProbs[1] / after.acceptanceProbs[0] > 0.8);
    }

    @Test
    public void aModelThatFails() throws IOException {
        drafter.catchUp(context, verdictAfter(9));
        model.failAfter = model.decoded + 2;
        assertArrayEquals(Toy.bytes("ab"), drafter.propose(context, 5));
        assertTrue(drafter.failure(), drafter.failure().contains("the engine says no"));
        assertEquals(0, drafter.estimate(context, 4).acceptanceProbs.length);
    }
}
