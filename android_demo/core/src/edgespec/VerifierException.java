package edgespec;

import java.io.IOException;

/** What can go wrong with a target far away. The message is a sentence for a person. */
public class VerifierException extends IOException {
    public VerifierException(String message) {
        super(message);
    }

    /** The server is away or has no room: another try later, or another target, may do. */
    public static final class Unavailable extends VerifierException {
        public Unavailable(String message) {
            super(message);
        }
    }

    /** The server does not want this device: a wrong key, model, vocabulary or version. */
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

    /** The person stopped the answer. */
    public static final class Cancelled extends VerifierException {
        public Cancelled() {
            super("the answer was stopped");
        }
    }
}
