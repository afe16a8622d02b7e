package android.text;

public interface InputType {
    int TYPE_CLASS_TEXT = 1;
    int TYPE_TEXT_VARIATION_URI = 0x10;
    int TYPE_TEXT_VARIATION_PASSWORD = 0x80;
    int TYPE_TEXT_FLAG_CAP_SENTENCES = 0x4000;
    int TYPE_TEXT_FLAG_MULTI_LINE = 0x20000;
}
