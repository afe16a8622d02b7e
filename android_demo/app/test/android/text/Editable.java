package android.text;

public interface Editable {
}
