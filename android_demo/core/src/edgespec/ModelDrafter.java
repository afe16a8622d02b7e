package edgespec;

import java.io.IOException;
import java.util.Arrays;

/**
 * Drafts greedily for a remote target with the small model on the device. While a draft is being
 * verified it drafts ahead: it guesses that the whole draft is accepted and which token the target
 * adds (SpecEdge, arXiv 2505.17052). If the guess comes true, the next draft is known already. The
 * model also catches up with the context in that time only, so that no step waits for it.
 */
final class ModelDrafter {
    /** Most unread tokens that one evaluation reads together with the first draft. */
    private static final int MAX_UNREAD = 8;
    private static final int FIRST = 0;
    private static final int FURTHER = 1;
    /**
     * Assumed until drafts were verified: the acceptance probability of a first token, and the
     * conditional acceptance rate of further ones.
     */
    private static final double[] ASSUMED = {0.7, 0.8};
    /** Seconds of an evaluation of one token, assumed until one was measured. */
    private static final double ASSUMED_TOKEN_S = 0.03;
    /** Weight of the newest measurement in the running mean. */
    private static final double WEIGHT = 1 / 8.0;

    /** The verdict that is awaited while the model drafts. */
    interface Verdict {
        /** Returns true if the verdict has arrived. */
        boolean ready() throws IOException;
    }

    private final ModelCache cache;
    private Calibration calibration = new Calibration();
    private double tokenS = ASSUMED_TOKEN_S;
    /** The context for which the tokens in `ahead` were drafted. */
    private int[] guessedContext = {};
    private int[] ahead = {};
    private int nDrafted;
    private String failure = "";

    ModelDrafter(ModelCache cache) {
        this.cache = cache;
    }

    /** Begins a request. It learns anew, so that one bad answer does not rule out the next. */
    void begin() {
        calibration = new Calibration();
        ahead = new int[0];
        nDrafted = 0;
    }

    /** Returns a sentence that says why it no longer drafts, "" while it does. */
    String failure() { return failure; }

    /** Returns what it expects of at most limit tokens after this context. */
    Draft estimate(int[] context, int limit) {
        if (cameTrue(context)) {
            return estimate(context, limit, Arrays.copyOf(ahead, Math.min(ahead.length, limit)));
        }
        int unread = context.length - cache.commonPrefix(context);
        return unread > MAX_UNREAD ? Draft.NONE : estimate(context, limit, Draft.NONE.tokens);
    }

    /** Returns what it would expect if it had read the whole context. */
    Draft estimateIfCaughtUp(int[] context, int limit) {
        return estimate(context, limit, Draft.NONE.tokens);
    }

    private Draft estimate(int[] context, int limit, int[] known) {
        if (!failure.isEmpty() || context.length + limit > cache.model.contextSize()) {
            return Draft.NONE;
        }
        double[] probs = new double[limit];
        double prob = acceptanceRate(FIRST);
        for (int i = 0; i < limit; i++) {
            probs[i] = prob;
            prob *= acceptanceRate(FURTHER);
        }
        return new Draft(known, probs, tokenS);
    }

    /** Drafts `depth` tokens, or fewer if the model fails. */
    int[] propose(int[] context, int depth) {
        int[] known = cameTrue(context) ? Arrays.copyOf(ahead, Math.min(ahead.length, depth)) : new int[0];
        IntList text = new IntList(context);
        text.addAll(known);
        try {
            while (text.size() < context.length + depth) {
                text.add(next(text.toArray()));
            }
        } catch (IOException error) {
            fail(error);
        }
        int[] draft = text.copy(context.length, text.size());
        nDrafted = draft.length;
        return draft;
    }

    /** Drafts on after a draft that is being verified, until its verdict has arrived. */
    void draftAhead(int[] context, int[] draft, int limit, Verdict verdict) throws IOException {
        IntList text = new IntList(context);
        text.addAll(draft);
        int n = text.size();
        if (text.size() + limit + 1 > cache.model.contextSize() || !catchUp(text.toArray(), verdict)) {
            return;
        }
        try {
            while (text.size() < n + 1 + limit && !verdict.ready()) {
                text.add(next(text.toArray()));
            }
        } catch (VerifierException error) {
            throw error;
        } catch (IOException error) {
            fail(error);
        }
        guessedContext = text.copy(0, Math.min(n + 1, text.size()));
        ahead = text.size() > n + 1 ? text.copy(n + 1, text.size()) : new int[0];
    }

    /**
     * Reads all but the last token of a context, and stops when a verdict has arrived.
     *
     * @return whether it has read them all
     */
    boolean catchUp(int[] context, Verdict verdict) throws IOException {
        int[] wanted = Arrays.copyOf(context, context.length - 1);
        try {
            int n = cache.align(wanted);
            while (n < wanted.length) {
                if (verdict.ready()) {
                    return false;
                }
                int end = Math.min(n + ModelCache.CHUNK, wanted.length);
                cache.decode(Arrays.copyOfRange(wanted, n, end));
                n = end;
            }
            return true;
        } catch (VerifierException error) {
            throw error;
        } catch (IOException error) {
            fail(error);
            return false;
        }
    }

    /** Learns from the verdict on its own draft: all emitted tokens but the last were accepted. */
    void accept(int[] tokens) {
        for (int i = 0; i < Math.min(tokens.length, nDrafted); i++) {
            calibration.observe(i == 0 ? FIRST : FURTHER, i < tokens.length - 1);
        }
        nDrafted = 0;
    }

    /** Returns the likeliest token after a text of which at most a few tokens are unread. */
    private int next(int[] text) throws IOException {
        int n = cache.align(Arrays.copyOf(text, text.length - 1));
        long began = System.nanoTime();
        int likeliest = cache.decode(Arrays.copyOfRange(text, n, text.length));
        if (text.length - n == 1) {
            tokenS += WEIGHT * (1e-9 * (System.nanoTime() - began) - tokenS);
        }
        return likeliest;
    }

    /** Returns true if the context is the one for which it has drafted ahead. */
    private boolean cameTrue(int[] context) {
        return ahead.length > 0 && Arrays.equals(guessedContext, context);
    }

    private double acceptanceRate(int kind) { return calibration.estimate(kind, ASSUMED[kind]); }

    private void fail(IOException error) {
        failure = "the model on the device fails and no longer drafts: " + VerifierException.reason(error);
    }
}
