package edgespec;

import java.io.IOException;
import java.util.Arrays;

/** Who drafts for a target, if anybody: here nobody does. */
class Drafting {
    static final Drafting NONE = new Drafting();

    /** The tokens to have verified next; none for a plain step. */
    int[] draft(IntList context, int limit) throws IOException {
        return Draft.NONE.tokens;
    }

    /** The draft is on its way, and there is time until its verdict. */
    void foresee(IntList context, int[] draft) throws IOException {
    }

    /** What was emitted. */
    void accept(int[] tokens, Figures figures, Listener listener) {
    }

    /** Lookup, and the model on the device where it has the target's vocabulary. */
    static final class Far extends Drafting {
        private final RemoteVerifier verifier;
        private final Policy policy;
        private final SuffixDrafter lookup;
        private final ModelDrafter model;
        private boolean told;

        /** @param model null where there is none */
        Far(RemoteVerifier verifier, SuffixDrafter lookup, ModelDrafter model) {
            this.verifier = verifier;
            this.policy = new Policy(verifier.costs());
            this.lookup = lookup;
            this.model = model;
        }

        /** A new request. */
        void begin(int[] prompt, int[] earlier) {
            lookup.begin(prompt, earlier);
            if (model != null) {
                model.begin();
            }
        }

        @Override
        int[] draft(IntList context, int limit) throws IOException {
            if (limit <= 0 || verifier.ready()) { // what the server has emitted is not thrown away
                return Draft.NONE.tokens;
            }
            int[] tokens = context.toArray();
            Draft found = lookup.propose(limit);
            Offer copied = new Offer(found.survival, found.tokens.length, 0);
            Offer drafted = model == null ? Offer.NOTHING : model.offer(tokens, limit);
            Policy.Plan plan = policy.choose(new Offer[] {copied, drafted}, verifier.roundTripS());
            if (plan.depth == 0) {
                return Draft.NONE.tokens;
            }
            return plan.index == 1 ? model.propose(tokens, plan.depth)
                    : Arrays.copyOf(found.tokens, plan.depth);
        }

        @Override
        void foresee(IntList context, int[] draft) throws IOException {
            if (model == null || verifier.maxDraft() == 0) {
                return;
            }
            int[] tokens = context.toArray();
            Offer[] wish = {model.wish(tokens, verifier.maxDraft())};
            if (policy.choose(wish, verifier.roundTripS()).depth == 0) {
                return; // it would not be asked: save the battery
            }
            if (draft.length > 0) {
                model.foresee(tokens, draft, verifier.maxDraft(), verifier);
            } else {
                model.read(tokens, verifier);
            }
        }

        @Override
        void accept(int[] tokens, Figures figures, Listener listener) {
            lookup.accept(tokens);
            figures.roundTripS = verifier.roundTripS();
            if (model != null) {
                model.accept(tokens);
                if (!told && !model.failure().isEmpty()) {
                    told = true;
                    listener.onNote(model.failure());
                }
            }
        }
    }
}
