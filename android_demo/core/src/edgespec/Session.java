package edgespec;

import java.io.IOException;

/** The loop: choose, draft, verify, cut, accept. edgespec/decoding/session.py. */
final class Session {
    private final Verifier verifier;
    private final StopFlag stop;

    Session(Verifier verifier, StopFlag stop) {
        this.verifier = verifier;
        this.stop = stop;
    }

    /**
     * Answers a prompt until the output has a finish reason.
     *
     * @param drafting makes the drafts
     * @throws IOException what verifier or model throw; what was said is in the output
     */
    void run(int[] prompt, Drafting drafting, Output output, Figures figures, Listener listener)
            throws IOException {
        IntList context = new IntList(prompt);
        try {
            verifier.begin(prompt, output.left());
            while (output.finishReason().isEmpty()) {
                stop.check();
                int limit = Math.min(output.left() - 1, verifier.contextSize() - context.size());
                int[] draft = drafting.draft(context, Math.min(limit, verifier.maxDraft()));
                verifier.submit(draft);
                drafting.foresee(context, draft);
                Verdict verdict = verifier.result();
                figures.drafted += draft.length;
                figures.accepted += verdict.nAccepted;
                int[] emitted = output.cut(verdict.tokens, verdict.nAccepted, listener);
                context.addAll(emitted);
                verifier.accept(emitted);
                drafting.accept(emitted, figures, listener);
                if (context.size() > verifier.contextSize()) {
                    output.finish("length");
                }
                if (output.finishReason().isEmpty() && figures.due()) {
                    listener.onStats(figures.stats(output.size(), ""));
                }
            }
        } finally {
            verifier.rest();
        }
    }
}
