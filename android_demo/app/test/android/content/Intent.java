package android.content;

import android.net.Uri;

public class Intent {
    public static final String ACTION_OPEN_DOCUMENT = "android.intent.action.OPEN_DOCUMENT";
    public static final String CATEGORY_OPENABLE = "android.intent.category.OPENABLE";

    private final String action;
    private final Class<?> component;
    private Uri data;

    public Intent(String action) {
        this.action = action;
        this.component = null;
    }

    public Intent(Context context, Class<?> component) {
        this.action = null;
        this.component = component;
    }

    public String getAction() {
        return action;
    }

    public Class<?> fakeComponent() {
        return component;
    }

    public Intent addCategory(String category) {
        return this;
    }

    public Intent setType(String type) {
        return this;
    }

    public Intent setData(Uri data) {
        this.data = data;
        return this;
    }

    public Uri getData() {
        return data;
    }
}
