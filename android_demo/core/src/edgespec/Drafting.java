package edgespec;

import java.io.IOException;
import java.util.Arrays;

/** Drafts for the server by prompt lookup and, if there is one, with the model on the device. */
final class Drafting {
    private final RemoteVerifier verifier;
    private final Policy policy;
    private final SuffixDrafter lookup;
    private final ModelDrafter model;
    private boolean failureReported;

    /** @param model drafts with a model of the target's vocabulary; or null */
    Drafting(RemoteVerifier verifier, SuffixDrafter lookup, ModelDrafter model) {
        this.verifier = verifier;
        this.policy = new Policy(verifier.costs());
        this.lookup = lookup;
        this.model = model;
    }

    /** Begins a request. */
    void begin(int[] prompt, int[] earlier) {
        lookup.begin(prompt, earlier);
        if (model != null) {
            model.begin();
        }
    }

    /** Returns the tokens to verify next, at most limit; none for a plain step. */
    int[] draft(IntList context, int limit) throws IOException {
        if (limit <= 0 || verifier.ready()) { // a draft would discard tokens that have arrived
            return Draft.NONE.tokens;
        }
        int[] tokens = context.toArray();
        Draft found = lookup.propose(limit);
        Draft ofModel = model == null ? Draft.NONE : model.estimate(tokens, limit);
        Policy.Plan plan = policy.choose(new Draft[] {found, ofModel}, verifier.roundTripS());
        if (plan.depth == 0) {
            return Draft.NONE.tokens;
        }
        return plan.source == 1 ? model.propose(tokens, plan.depth) : Arrays.copyOf(found.tokens, plan.depth);
    }

    /** Uses the time in which the draft is being verified. */
    void draftAhead(IntList context, int[] draft) throws IOException {
        if (model == null || verifier.maxDraft() == 0) {
            return;
        }
        int[] tokens = context.toArray();
        Draft[] atBest = {model.estimateIfCaughtUp(tokens, verifier.maxDraft())};
        if (policy.choose(atBest, verifier.roundTripS()).depth == 0) {
            return; // the policy would not choose the model: save the battery
        }
        if (draft.length > 0) {
            model.draftAhead(tokens, draft, verifier.maxDraft(), verifier);
        } else {
            model.catchUp(tokens, verifier);
        }
    }

    /** Takes note of the emitted tokens. */
    void accept(int[] tokens, RunningStats running, Listener listener) {
        lookup.accept(tokens);
        running.roundTripS = verifier.roundTripS();
        if (model != null) {
            model.accept(tokens);
            if (!failureReported && !model.failure().isEmpty()) {
                failureReported = true;
                listener.onNote(model.failure());
            }
        }
    }
}
