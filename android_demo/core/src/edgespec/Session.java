package edgespec;

import java.io.IOException;

/** Runs the loop of edgespec/decoding/session.py: choose, draft, verify, cut, accept. */
final class Session {
    private final RemoteVerifier verifier;
    private final StopFlag stop;

    Session(RemoteVerifier verifier, StopFlag stop) {
        this.verifier = verifier;
        this.stop = stop;
    }

    /**
     * Answers a prompt until the output has a finish reason.
     *
     * @param drafting makes the drafts
     * @throws IOException what verifier or model throw; the output keeps the tokens emitted before
     */
    void run(int[] prompt, Drafting drafting, Output output, RunningStats running, Listener listener)
            throws IOException {
        IntList context = new IntList(prompt);
        try {
            verifier.begin(prompt, output.left());
            while (output.finishReason().isEmpty()) {
                stop.check();
                int limit = Math.min(output.left() - 1, verifier.contextSize() - context.size());
                int[] draft = drafting.draft(context, Math.min(limit, verifier.maxDraft()));
                verifier.submit(draft);
                drafting.draftAhead(context, draft);
                int[] verdict = verifier.result();
                running.drafted += draft.length;
                running.accepted += verdict.length - 1;
                int[] emitted = output.cut(verdict, listener);
                context.addAll(emitted);
                verifier.accept(emitted);
                drafting.accept(emitted, running, listener);
                if (context.size() > verifier.contextSize()) {
                    output.finish("length");
                }
                running.reportNowAndThen(output, listener);
            }
        } finally {
            verifier.finish();
        }
    }
}
