package android.content;

import android.net.Uri;

public class Intent {
    public static final String ACTION_OPEN_DOCUMENT = "android.intent.action.OPEN_DOCUMENT";

    public final String fakeAction;
    public final String fakeComponent;
    public Uri fakeData;

    public Intent(String action) {
        fakeAction = action;
        fakeComponent = "";
    }

    public Intent(Context context, Class<?> component) {
        fakeAction = "";
        fakeComponent = component.getSimpleName();
    }

    public Intent addCategory(String category) { return this; }
    public Intent setType(String type) { return this; }
    public Uri getData() { return fakeData; }
}
