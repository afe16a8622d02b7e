package edgespec;

/** Reports that the other side sent something that docs/concepts/protocol.md does not allow. */
public final class ProtocolException extends VerifierException {
    public ProtocolException(String message) {
        super(message);
    }
}
