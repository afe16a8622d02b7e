package edgespec;

/** One message of a conversation. */
public final class Message {
    /** "system", "user" or "assistant". */
    public final String role;
    public final String content;

    public Message(String role, String content) {
        this.role = role;
        this.content = content;
    }
}
