package edgespec;

import java.io.IOException;
import java.util.Arrays;

/**
 * The small model on the device drafting for a target far away, greedily. While a verdict is awaited
 * it drafts on, guessing that the whole draft is accepted and which token the target adds (SpecEdge,
 * arXiv 2505.17052); if that comes true the next draft is there already. What it has not read yet of
 * the context it reads in such waits, so that nobody ever waits for its reading.
 */
final class ModelDrafter {
    /** Unread tokens that one evaluation takes along with the first draft. */
    private static final int SHORT = 8;
    private static final int FIRST = 0;
    private static final int FOLLOWING = 1;
    private static final double[] ASSUMED = {0.7, 0.8};
    /** Seconds of an evaluation before one was measured. */
    private static final double EACH_S = 0.03;
    private static final double MEMORY = 1 / 8.0;

    private final ModelCache cache;
    private Calibration calibration = new Calibration();
    private double eachS = EACH_S;
    private int[] guessed = {};
    private int[] ahead = {};
    private int nDrafted;
    private String failure = "";

    ModelDrafter(ModelCache cache) {
        this.cache = cache;
    }

    /** A new answer: what is assumed of it is assumed anew, so a bad answer does not rule out the next. */
    void begin() {
        calibration = new Calibration();
        ahead = new int[0];
        nDrafted = 0;
    }

    /** Why it no longer drafts, as a sentence, "" while it does. */
    String failure() {
        return failure;
    }

    /** What it could draft behind this context. */
    Offer offer(int[] context, int limit) {
        if (came(context)) {
            return wish(context, limit, Math.min(ahead.length, limit));
        }
        int unread = context.length - cache.commonPrefix(context);
        return unread > SHORT ? Offer.NOTHING : wish(context, limit, 0);
    }

    /** What it could draft if it had read everything. */
    Offer wish(int[] context, int limit) {
        return wish(context, limit, 0);
    }

    private Offer wish(int[] context, int limit, int nKnown) {
        if (!failure.isEmpty() || context.length + limit > cache.model.contextSize()) {
            return Offer.NOTHING;
        }
        double[] survival = new double[limit];
        double chance = estimate(FIRST);
        for (int i = 0; i < limit; i++) {
            survival[i] = chance;
            chance *= estimate(FOLLOWING);
        }
        return new Offer(survival, nKnown, eachS);
    }

    /** So many tokens; fewer only where the model fails. */
    int[] propose(int[] context, int depth) {
        int[] known = came(context) ? Arrays.copyOf(ahead, Math.min(ahead.length, depth)) : new int[0];
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

    /** Drafts on behind a draft that is on its way, until its verdict is there. */
    void foresee(int[] context, int[] draft, int limit, Verifier verifier) throws IOException {
        IntList text = new IntList(context);
        text.addAll(draft);
        int n = text.size();
        if (text.size() + limit + 1 > cache.model.contextSize() || !read(text.toArray(), verifier)) {
            return;
        }
        try {
            while (text.size() < n + 1 + limit && !verifier.ready()) {
                text.add(next(text.toArray()));
            }
        } catch (VerifierException error) {
            throw error;
        } catch (IOException error) {
            fail(error);
        }
        guessed = text.copy(0, Math.min(n + 1, text.size()));
        ahead = text.size() > n + 1 ? text.copy(n + 1, text.size()) : new int[0];
    }

    /** Reads all but the last token of a context, unless an answer comes first; whether it has. */
    boolean read(int[] context, Verifier verifier) throws IOException {
        int[] wanted = Arrays.copyOf(context, context.length - 1);
        try {
            int n = cache.align(wanted);
            while (n < wanted.length) {
                if (verifier.ready()) {
                    return false;
                }
                int end = Math.min(n + ModelCache.PIECE, wanted.length);
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

    /** Learns from the verdict of its own draft: all but the last token were accepted. */
    void accept(int[] tokens) {
        for (int i = 0; i < Math.min(tokens.length, nDrafted); i++) {
            calibration.observe(i == 0 ? FIRST : FOLLOWING, i < tokens.length - 1);
        }
        nDrafted = 0;
    }

    /** The likeliest token behind a text of which at most a few tokens are unread. */
    private int next(int[] text) throws IOException {
        int n = cache.align(Arrays.copyOf(text, text.length - 1));
        long began = System.nanoTime();
        int likeliest = cache.decode(Arrays.copyOfRange(text, n, text.length));
        if (text.length - n == 1) {
            eachS += MEMORY * (1e-9 * (System.nanoTime() - began) - eachS);
        }
        return likeliest;
    }

    private boolean came(int[] context) {
        return ahead.length > 0 && Arrays.equals(guessed, context);
    }

    private double estimate(int kind) {
        return calibration.estimate(kind, ASSUMED[kind]);
    }

    private void fail(IOException error) {
        failure = "the model on the device fails and no longer drafts: " + WebSocket.reason(error);
    }
}
