package edgespec;

import java.io.IOException;

/** An error of a verifier. The message is a sentence that can be shown to the user. */
public class VerifierException extends IOException {
    public VerifierException(String message) {
        super(message);
    }

    /** Returns the message of a system exception, or its class if it has none. */
    public static String reason(Exception error) {
        String message = error.getMessage();
        return message == null || message.isEmpty() ? error.getClass().getSimpleName() : message;
    }

    /** The server does not answer or is busy: try again later, or use another target. */
    public static final class Unavailable extends VerifierException {
        public Unavailable(String message) {
            super(message);
        }
    }

    /** The server refuses this device: its key, model, vocabulary or version is wrong. */
    public static final class Refused extends VerifierException {
        public Refused(String message) {
            super(message);
        }
    }

    /** The conversation is longer than the target's context. */
    public static final class ContextFull extends VerifierException {
        public ContextFull(String message) {
            super(message);
        }
    }

    /** The user stopped the answer. */
    public static final class Cancelled extends VerifierException {
        public Cancelled() {
            super("the answer was stopped");
        }
    }
}
