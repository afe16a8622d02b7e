package edgespec;

/** The other side said something that docs/concepts/protocol.md does not allow. */
public final class ProtocolException extends VerifierException {
    public ProtocolException(String message) {
        super(message);
    }
}
